// SPDX-License-Identifier: Apache-2.0
//! Who may do what in etcd, and what it says when something is not allowed or not possible.

use std::path::Path;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, Permission};
use steadfast_coord::etcd::{EtcdCredentials, EtcdSettings, EtcdStore, EtcdTls, PasswordSource};
use steadfast_coord::{Store, StoreError};
use steadfast_core::{Operation, Outcome, Revision, Transaction};

use crate::certificates::Certificates;
use crate::server::{Etcd, Options, Server, wait_for};

on_each_etcd!(
    a_password_that_was_changed_is_read_anew,
    what_the_user_may_not_do_is_said,
    a_watch_survives_a_login_that_has_run_out,
    who_does_not_log_in_is_told_to,
    a_user_where_everybody_is_let_in_does_no_harm,
    prefixes_keep_clusters_apart,
    a_full_database_says_what_to_do,
    too_large_requests_are_refused_in_words,
    tls_takes_the_right_authority_and_no_other,
    tls_shows_a_certificate_where_etcd_asks_for_one,
    a_lease_is_never_shorter_than_asked_for,
);

async fn write(store: &EtcdStore, key: &str, value: &str) -> Result<Outcome, StoreError> {
    store
        .transact(Transaction {
            when: vec![],
            then: vec![Operation::Put {
                key: key.to_owned(),
                value: value.into(),
                lease: None,
            }],
        })
        .await
}

fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Err(StoreError::Unavailable(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// Switches logins on: a root, and a user `train` who may use the keys under `/train/`. The client is root's.
async fn with_logins(server: &Server) -> Client {
    let mut client = server.client().await;
    client.user_add("root", "root", None).await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("train").await.unwrap();
    client
        .role_grant_permission("train", Permission::read_write("/train/").with_prefix())
        .await
        .unwrap();
    client.user_add("train", "first", None).await.unwrap();
    client.user_grant_role("train", "train").await.unwrap();
    client.auth_enable().await.unwrap();
    client
        .update_user(Some(("root".to_owned(), "root".to_owned())))
        .await
        .unwrap();
    client
}

/// What the user `train` sets. The cluster's prefix is `/train`, so job keys begin with `/`.
fn as_train(server: &Server, password_file: &Path) -> EtcdSettings {
    EtcdSettings {
        prefix: "/train".to_owned(),
        credentials: Some(EtcdCredentials {
            user: "train".to_owned(),
            password: PasswordSource::File(password_file.to_owned()),
        }),
        ..server.settings()
    }
}

async fn a_password_that_was_changed_is_read_anew(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let mut root = with_logins(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    let missing = refused(EtcdStore::connect(as_train(&server, &file)).await);
    assert!(missing.contains(file.to_str().unwrap()), "{missing}");
    std::fs::write(&file, "wrong\n").unwrap();
    let wrong = refused(EtcdStore::connect(as_train(&server, &file)).await);
    assert!(
        wrong.contains("`train`") && wrong.contains(file.to_str().unwrap()),
        "{wrong}"
    );
    assert!(wrong.contains("check both"), "{wrong}");
    std::fs::write(&file, "first\n").unwrap();
    let store = EtcdStore::connect(as_train(&server, &file)).await.unwrap();
    write(&store, "/job", "1").await.unwrap();
    let lease = store.lease_grant(Duration::from_mins(1)).await.unwrap();
    root.user_change_password("train", "second").await.unwrap();
    let early = refused(write(&store, "/job", "2").await);
    assert!(early.contains("check both"), "{early}");
    std::fs::write(&file, "second").unwrap();
    // Once changed in the file too, all goes on; a transaction that needed the login was done once.
    let before = store.range("/job").await.unwrap().0[0].mod_revision;
    let outcome = write(&store, "/job", "3").await.unwrap();
    assert_eq!(outcome.revision, Revision(before.0 + 1));
    store.lease_keepalive(lease).await.unwrap();
}

async fn what_the_user_may_not_do_is_said(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    with_logins(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "first").unwrap();
    let elsewhere = EtcdSettings {
        prefix: "/else".to_owned(),
        ..as_train(&server, &file)
    };
    let store = EtcdStore::connect(elsewhere).await.unwrap();
    for reason in [
        refused(write(&store, "/job", "1").await),
        refused(store.range("/job").await),
        refused(store.watch("/job", Revision(1)).await),
        refused(store.watch("/job", Revision(1_000)).await),
    ] {
        assert!(reason.contains("grant-permission"), "{reason}");
    }
}

async fn a_watch_survives_a_login_that_has_run_out(etcd: Etcd) {
    let mut server = Server::start(&etcd).await;
    with_logins(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "first").unwrap();
    let store = EtcdStore::connect(as_train(&server, &file)).await.unwrap();
    let revision = write(&store, "/job", "1").await.unwrap().revision;
    let mut watch = store.watch("/job", revision).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, revision);
    // etcd keeps its tokens in memory.
    server.kill();
    server.start_again();
    wait_for("etcd takes writes again", async || {
        write(&store, "/job", "2").await.is_ok()
    })
    .await;
    assert!(watch.next().await.unwrap().revision > revision);
}

async fn who_does_not_log_in_is_told_to(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let store = server.store().await;
    write(&store, "/train/a", "1").await.unwrap();
    with_logins(&server).await;
    let reason = refused(write(&store, "/train/a", "2").await);
    assert!(reason.contains("set a user and a password"), "{reason}");
}

async fn a_user_where_everybody_is_let_in_does_no_harm(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "first").unwrap();
    let store = EtcdStore::connect(as_train(&server, &file)).await.unwrap();
    write(&store, "/a", "1").await.unwrap();
    // And when logins are switched on later, it logs in.
    with_logins(&server).await;
    write(&store, "/a", "2").await.unwrap();
}

async fn prefixes_keep_clusters_apart(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let of_prefix = async |prefix: &str| {
        let uri = format!("etcd://{}{prefix}", server.client_address);
        EtcdStore::connect(EtcdSettings::from_uri(&uri).unwrap())
            .await
            .unwrap()
    };
    let (one, two) = (of_prefix("/one").await, of_prefix("/two").await);
    let revision = write(&one, "/steadfast/j/plan", "1")
        .await
        .unwrap()
        .revision;
    write(&two, "/steadfast/j/plan", "2").await.unwrap();
    let entries = one.range("/steadfast/").await.unwrap().0;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].key, "/steadfast/j/plan");
    let mut watch = two.watch("/steadfast/", revision).await.unwrap();
    let batch = watch.next().await.unwrap();
    assert_eq!(batch.changes[0].key(), "/steadfast/j/plan");
    assert_eq!(batch.revision, Revision(revision.0 + 1));
    let all = server.store().await.range("").await.unwrap().0;
    let keys: Vec<_> = all.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["/one/steadfast/j/plan", "/two/steadfast/j/plan"]);
}

async fn a_full_database_says_what_to_do(etcd: Etcd) {
    let options = Options {
        arguments: vec!["--quota-backend-bytes=2000000".to_owned()],
        ..Options::default()
    };
    let server = Server::start_with(&etcd, &options).await;
    let store = server.store().await;
    let text = "x".repeat(200_000);
    let mut reason = None;
    for _ in 0..100 {
        match write(&store, "fill", &text).await {
            Ok(_) => {}
            Err(error) => {
                reason = Some(refused::<()>(Err(error)));
                break;
            }
        }
    }
    let reason = reason.expect("two megabytes are full after a hundred writes of 0.2");
    assert!(reason.contains("etcdctl alarm disarm"), "{reason}");
    let lease = refused(store.lease_grant(Duration::from_mins(1)).await);
    assert!(lease.contains("etcdctl alarm disarm"), "{lease}");
    // What it says to do helps.
    let revision = store.range("fill").await.unwrap().1;
    let mut client = server.client().await;
    // Physically, since otherwise it would go on beside the defragmentation.
    let options = CompactionOptions::new().with_physical();
    client.compact(revision.0, Some(options)).await.unwrap();
    client.defragment().await.unwrap();
    let member = client.status().await.unwrap().header().unwrap().member_id();
    let mut options = AlarmOptions::new();
    options.with_member(member);
    client
        .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options))
        .await
        .unwrap();
    write(&store, "fill", "little").await.unwrap();
}

async fn too_large_requests_are_refused_in_words(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let store = server.store().await;
    let large = refused(write(&store, "k", &"x".repeat(1_700_000)).await);
    assert!(large.contains("--max-request-bytes"), "{large}");
    let many = (0..200).map(|number| Operation::Delete {
        key: number.to_string(),
    });
    let many = Transaction {
        when: vec![],
        then: many.collect(),
    };
    let many = refused(store.transact(many).await);
    assert!(many.contains("--max-txn-ops"), "{many}");
}

async fn a_lease_is_never_shorter_than_asked_for(etcd: Etcd) {
    let server = Server::start(&etcd).await;
    let store = server.store().await;
    let mut client = server.client().await;
    for (asked, least) in [(0, 1), (10, 1), (60_000, 60), (60_001, 61)] {
        let lease = store.lease_grant(Duration::from_millis(asked)).await;
        let granted = client.lease_time_to_live(lease.unwrap().0, None).await;
        assert!(granted.unwrap().granted_ttl() >= least);
    }
}

/// An etcd whose clients use TLS.
async fn with_tls(etcd: &Etcd, own: &Certificates, asks_back: bool) -> Server {
    let mut arguments = vec![
        format!("--cert-file={}", own.path("server.pem").display()),
        format!("--key-file={}", own.path("server.key").display()),
    ];
    if asks_back {
        arguments.push("--client-cert-auth".to_owned());
        let authority = own.path("ca.pem");
        arguments.push(format!("--trusted-ca-file={}", authority.display()));
    }
    let options = Options {
        arguments,
        tls: true,
    };
    Server::start_with(etcd, &options).await
}

fn secured(server: &Server, tls: EtcdTls) -> EtcdSettings {
    EtcdSettings {
        tls: Some(tls),
        // In vain most of the time here.
        request_timeout: Duration::from_millis(1_500),
        ..server.settings()
    }
}

fn trusting(authority: &Certificates) -> EtcdTls {
    EtcdTls {
        ca_file: Some(authority.path("ca.pem")),
        ..EtcdTls::default()
    }
}

async fn connects(settings: &EtcdSettings) {
    wait_for("etcd lets us in", async || {
        EtcdStore::connect(settings.clone()).await.is_ok()
    })
    .await;
    let store = EtcdStore::connect(settings.clone()).await.unwrap();
    write(&store, "tls", "1").await.unwrap();
    assert!(store.endpoint().unwrap().starts_with("https://"));
}

async fn tls_takes_the_right_authority_and_no_other(etcd: Etcd) {
    let (Some(own), Some(foreign)) = (Certificates::make(), Certificates::make()) else {
        return;
    };
    let server = with_tls(&etcd, &own, false).await;
    connects(&secured(&server, trusting(&own))).await;
    let reason = unavailable(EtcdStore::connect(secured(&server, trusting(&foreign))).await);
    assert!(reason.contains("certificate"), "{reason}");
    // Nor does the system know this authority.
    let reason = unavailable(EtcdStore::connect(secured(&server, EtcdTls::default())).await);
    assert!(reason.contains("certificate"), "{reason}");
    let renamed = EtcdTls {
        server_name: Some("another.example".to_owned()),
        ..trusting(&own)
    };
    let reason = unavailable(EtcdStore::connect(secured(&server, renamed)).await);
    assert!(reason.contains("certificate"), "{reason}");
    let in_the_clear = EtcdSettings {
        tls: None,
        ..secured(&server, EtcdTls::default())
    };
    let reason = unavailable(EtcdStore::connect(in_the_clear).await);
    assert!(reason.contains("etcds://"), "{reason}");
    let plain = Server::start(&etcd).await;
    let needless = secured(&plain, trusting(&own));
    let reason = unavailable(EtcdStore::connect(needless).await);
    assert!(reason.contains("etcd://"), "{reason}");
    let nowhere = EtcdTls {
        ca_file: Some(own.path("nowhere.pem")),
        ..EtcdTls::default()
    };
    let reason = refused(EtcdStore::connect(secured(&server, nowhere)).await);
    assert!(reason.contains("nowhere.pem"), "{reason}");
}

async fn tls_shows_a_certificate_where_etcd_asks_for_one(etcd: Etcd) {
    let Some(own) = Certificates::make() else {
        return;
    };
    let server = with_tls(&etcd, &own, true).await;
    let with_certificate = EtcdTls {
        client: Some(own.client()),
        ..trusting(&own)
    };
    connects(&secured(&server, with_certificate)).await;
    let reason = unavailable(EtcdStore::connect(secured(&server, trusting(&own))).await);
    assert!(reason.contains("may want a client certificate"), "{reason}");
    let foreign = Certificates::make().unwrap();
    let not_accepted = EtcdTls {
        client: Some(foreign.client()),
        ..trusting(&own)
    };
    let reason = unavailable(EtcdStore::connect(secured(&server, not_accepted)).await);
    assert!(reason.contains("may not accept the client"), "{reason}");
}
