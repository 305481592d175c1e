// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::managed_etcd::events::Event;
use crate::managed_etcd::layout::EtcdHost;

struct Scene {
    process: Process,
    events: mpsc::UnboundedReceiver<Event>,
    place: Place,
    _directory: tempfile::TempDir,
}

fn scene() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::open(directory.path(), "t").unwrap();
    let (sender, events) = mpsc::unbounded_channel();
    let hosts = ["127.0.0.1:1:2", "127.0.0.1:3:4", "127.0.0.1:5:6"];
    let layout = Layout {
        hosts: hosts
            .map(|text| EtcdHost::parse(text, 1, 2).unwrap())
            .to_vec(),
        servers: 3,
        this_node: 0,
    };
    let log = ServerLog::new(files.log(), directory.path().join("copy"));
    Scene {
        process: Process {
            layout: Arc::new(layout),
            program: "/nowhere/etcd".into(),
            cluster_token: "t".to_owned(),
            heartbeat_ms: 100,
            files,
            log,
            events: Events(sender),
            view: None,
            starts: Starts::default(),
        },
        events,
        place: Place {
            number: 1,
            cluster_exists: false,
            initial_cluster: String::new(),
            has_had_data: false,
        },
        _directory: directory,
    }
}

impl Scene {
    fn step(&mut self) -> Condition {
        let place = self.place.clone();
        self.process.step(Some(&place))
    }

    /// The launches that the keeper was asked for, and how often it was asked for a stop.
    fn asked(&mut self) -> (Vec<u64>, usize) {
        let (mut launches, mut stops) = (Vec::new(), 0);
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Ask(Request::StartCompanion(request), output) => {
                    assert_eq!(output.len(), 1);
                    launches.push(request.launch);
                }
                Event::Ask(Request::StopCompanion { .. }, _) => stops += 1,
                Event::Ask(other, _) => panic!("{other:?}"),
                Event::News { .. } => {}
            }
        }
        (launches, stops)
    }

    fn tell(&mut self, launch: u64, exit: Option<Exit>) {
        self.process.observe(CompanionView {
            launch,
            pid: 42,
            exit,
            spawn_error: None,
        });
    }

    fn write_data(&self) {
        let wal = self.process.files.data(&self.place).join("member/wal");
        std::fs::create_dir_all(&wal).unwrap();
        std::fs::write(wal.join("0.wal"), "x").unwrap();
    }
}

const KILLED: Option<Exit> = Some(Exit::Signal {
    signal: 9,
    core_dumped: false,
});

#[tokio::test(start_paused = true)]
async fn one_that_dies_is_started_again_less_and_less_often() {
    let mut scene = scene();
    scene.step();
    let (first, _) = scene.asked();
    let mut launch = first[0];
    let mut pauses = Vec::new();
    for _ in 0..10 {
        assert_eq!(scene.step(), Condition::Down, "it was asked for once");
        assert_eq!(scene.asked().0, [0; 0]);
        scene.tell(launch, None);
        assert!(matches!(scene.step(), Condition::Running { .. }));
        scene.tell(launch, KILLED);
        let died = Instant::now();
        launch = loop {
            scene.step();
            if let Some(next) = scene.asked().0.pop() {
                break next;
            }
            sleep(Duration::from_millis(10)).await;
        };
        pauses.push(Instant::now() - died);
    }
    assert!(pauses[0].is_zero() && pauses[1].is_zero(), "{pauses:?}");
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert_eq!(*pauses.last().unwrap(), LONGEST_PAUSE);
}

#[tokio::test]
async fn data_that_are_gone_are_told_and_nothing_is_started_without_them() {
    let mut scene = scene();
    scene.place.has_had_data = true;
    scene.write_data();
    assert_eq!(scene.step(), Condition::Down);
    let (launches, _) = scene.asked();
    scene.tell(launches[0], None);
    assert_eq!(
        scene.step(),
        Condition::Running {
            place: 1,
            has_data: true
        }
    );
    std::fs::remove_dir_all(scene.process.files.data(&scene.place)).unwrap();
    scene.tell(launches[0], KILLED);
    assert_eq!(scene.step(), Condition::DataLost { place: 1 });
    assert_eq!(scene.asked().0, [0; 0]);
}

#[tokio::test]
async fn a_new_agent_leaves_a_running_one_alone() {
    let mut scene = scene();
    scene.process.view = Some(CompanionView {
        launch: first_launch(1) + 5,
        pid: 42,
        exit: None,
        spawn_error: None,
    });
    assert!(matches!(scene.step(), Condition::Running { place: 1, .. }));
    assert_eq!(scene.asked(), (vec![], 0));
}

#[tokio::test]
async fn one_without_a_place_is_stopped_once_and_the_next_place_gets_a_new_one() {
    let mut scene = scene();
    scene.step();
    let (launches, _) = scene.asked();
    scene.tell(launches[0], None);
    for _ in 0..3 {
        assert_eq!(scene.process.step(None), Condition::Down);
    }
    assert_eq!(scene.asked(), (vec![], 1));
    scene.place.number = 2;
    scene.step();
    assert_eq!(scene.asked(), (vec![], 0), "not beside the other");
    scene.tell(launches[0], KILLED);
    scene.step();
    assert_eq!(scene.asked(), (vec![first_launch(2)], 0));
}
