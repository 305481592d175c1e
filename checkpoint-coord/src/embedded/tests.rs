// SPDX-License-Identifier: Apache-2.0
use steadfast_core::Condition;

use super::*;

fn put(key: &str, value: &str) -> Transaction {
    Transaction {
        when: vec![],
        then: vec![Operation::Put {
            key: key.to_owned(),
            value: value.into(),
            lease: None,
        }],
    }
}

async fn values(medium: MemoryMedium) -> Vec<(String, String)> {
    let store = EmbeddedStore::open(medium).unwrap();
    let (entries, _) = store.range("").await.unwrap();
    entries
        .into_iter()
        .map(|entry| (entry.key, entry.value.to_string()))
        .collect()
}

#[tokio::test]
async fn contents_outlive_the_store_with_their_revisions() {
    let medium = MemoryMedium::default();
    let store = EmbeddedStore::open(medium.clone()).unwrap();
    store.transact(put("a", "1")).await.unwrap();
    store.transact(put("a", "2")).await.unwrap();
    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    let before = store.range("").await.unwrap();
    drop(store);
    let store = EmbeddedStore::open(medium).unwrap();
    assert_eq!(store.range("").await.unwrap(), before);
    store.lease_keepalive(lease).await.unwrap();
    let second = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    assert_ne!(lease, second);
}

#[tokio::test]
async fn a_file_is_a_medium() {
    let file = tempfile::tempfile().unwrap();
    let store = EmbeddedStore::open(FileMedium::new(file.try_clone().unwrap())).unwrap();
    store.transact(put("a", "1")).await.unwrap();
    drop(store);
    let store = EmbeddedStore::open(FileMedium::new(file)).unwrap();
    assert_eq!(store.range("a").await.unwrap().0[0].value, "1");
}

/// Offsets and bytes.
type Writes = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Records every write, so that a death between any two bytes can be played.
#[derive(Debug, Clone, Default)]
struct Recorder {
    medium: MemoryMedium,
    writes: Writes,
}

impl Medium for Recorder {
    fn load(&mut self) -> std::io::Result<Vec<u8>> {
        self.medium.load()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.writes.lock().unwrap().push((offset, bytes.to_vec()));
        self.medium.write(offset, bytes)
    }

    fn truncate(&mut self, length: u64) -> std::io::Result<()> {
        self.medium.truncate(length)
    }
}

fn compact(store: &EmbeddedStore) {
    let mut inner = store.lock();
    let snapshot = Snapshot {
        state: inner.state.clone(),
        leases: BTreeMap::new(),
        next_lease: 1,
    };
    inner.journal.compact(&snapshot).unwrap();
}

#[tokio::test]
async fn death_at_any_byte_loses_nothing_that_was_acknowledged() {
    let recorder = Recorder::default();
    let store = EmbeddedStore::open(recorder.clone()).unwrap();
    for number in 0..4 {
        store
            .transact(put("key", &number.to_string()))
            .await
            .unwrap();
    }
    // Twice, so that both the place behind the log and the place before it are used.
    for number in 4..6 {
        compact(&store);
        store
            .transact(put("key", &number.to_string()))
            .await
            .unwrap();
    }
    let writes = recorder.writes.lock().unwrap().clone();
    let mut whole = Vec::new();
    let mut last_seen = None;
    for (offset, bytes) in writes {
        let offset = usize::try_from(offset).unwrap();
        for torn in 0..=bytes.len() {
            let mut image: Vec<u8> = whole.clone();
            image.resize(image.len().max(offset + torn), 0);
            image[offset..offset + torn].copy_from_slice(&bytes[..torn]);
            let seen = values(MemoryMedium::with_bytes(image)).await.pop();
            let number = seen.and_then(|(_, value)| value.parse::<u32>().ok());
            assert!(number >= last_seen, "{number:?} after {last_seen:?}");
            last_seen = number;
        }
        whole.resize(whole.len().max(offset + bytes.len()), 0);
        whole[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(last_seen, Some(5));
}

#[tokio::test]
async fn the_log_is_compacted_and_stays_bounded() {
    let medium = MemoryMedium::default();
    let store = EmbeddedStore::open(medium.clone()).unwrap();
    let text = "x".repeat(1_000);
    for number in 0..5_000 {
        store
            .transact(put(&format!("key {}", number % 3), &text))
            .await
            .unwrap();
    }
    assert!(medium.bytes().len() < 2_000_000, "{}", medium.bytes().len());
    let revision = store.range("").await.unwrap().1;
    drop(store);
    let store = EmbeddedStore::open(medium).unwrap();
    assert_eq!(store.range("").await.unwrap().1, revision);
}

#[tokio::test]
async fn a_slow_watcher_is_told_that_it_missed_something() {
    let store = EmbeddedStore::open(MemoryMedium::default()).unwrap();
    let mut watch = store.watch("", Revision(2)).await.unwrap();
    for _ in 0..=WATCH_CAPACITY {
        store.transact(put("a", "")).await.unwrap();
    }
    let mut last = Revision(1);
    let error = loop {
        match watch.next().await {
            Ok(batch) => {
                assert_eq!(batch.revision.0, last.0 + 1);
                last = batch.revision;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error, crate::WatchError::Missed);
    let again = store.watch("", Revision(2)).await;
    assert!(matches!(again, Err(StoreError::Compacted { .. })));
}

#[tokio::test]
async fn damaged_headers_are_not_taken_for_an_empty_store() {
    let bytes = vec![7; 200];
    let opened = EmbeddedStore::open(MemoryMedium::with_bytes(bytes));
    assert!(matches!(opened, Err(StoreError::Corrupt(_))));
}

#[tokio::test]
async fn a_failed_guard_writes_nothing() {
    let medium = MemoryMedium::default();
    let store = EmbeddedStore::open(medium.clone()).unwrap();
    let before = medium.bytes().len();
    let mut transaction = put("a", "1");
    transaction.when.push(Condition::ModRevision {
        key: "a".into(),
        revision: Revision(9),
    });
    assert!(!store.transact(transaction).await.unwrap().succeeded);
    assert_eq!(medium.bytes().len(), before);
}
