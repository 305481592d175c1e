// SPDX-License-Identifier: Apache-2.0
//! From an incoming connection to a session: who is it, and may it talk?

use std::io;
use std::sync::Arc;
use std::time::Duration;

use steadfast_proto::v1::node_server::{Node, NodeServer};
use steadfast_proto::v1::{Order, Report};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::connection::{Caller, Connection};
use super::listener::BindError;
use super::session::Session;
use super::{Shared, now};
use crate::peers::{
    Fingerprint, GREET_WITHIN, LARGEST_MESSAGE, PeerEvent, PeerIdentity, Violation, WINDOW, tls,
};

/// How many connections there may be, those of strangers included.
const MOST_CONNECTIONS: usize = 16 * 1024;
/// How many others may be proving who they are at a time.
const MOST_HANDSHAKES: usize = 256;
/// How many orders wait for a node that does not read.
const WAITING_ORDERS: usize = 8;
/// How long accepting rests after a failure, such as too many open files.
const REST: Duration = Duration::from_millis(200);

type Incoming = mpsc::Sender<io::Result<Connection>>;

/// Accepts and serves connections until the server stops.
pub(super) fn serve(
    listener: TcpListener,
    identity: &PeerIdentity,
    shared: &Arc<Shared>,
) -> Result<(), BindError> {
    let config = tls::server_config(identity, shared.accepted.clone()).map_err(BindError::Tls)?;
    let door = Door {
        tls: TlsAcceptor::from(Arc::new(config)),
        shared: Arc::clone(shared),
    };
    let (incoming, connections) = mpsc::channel(1);
    let service = NodeServer::new(Service {
        shared: Arc::clone(shared),
    });
    let server = Server::builder()
        .max_concurrent_streams(1)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_max_header_list_size(4096)
        .add_service(service.max_decoding_message_size(LARGEST_MESSAGE))
        .serve_with_incoming(ReceiverStream::new(connections));
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::warn!(%error, "The agents of other nodes are no longer listened to.");
        }
    });
    tokio::spawn(accept(listener, Arc::new(door), incoming));
    Ok(())
}

struct Door {
    tls: TlsAcceptor,
    shared: Arc<Shared>,
}

async fn accept(listener: TcpListener, door: Arc<Door>, incoming: Incoming) {
    let rooms = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let handshakes = Arc::new(Semaphore::new(MOST_HANDSHAKES));
    let stop = door.shared.stop.clone();
    let accept_all = async {
        loop {
            // Both semaphores are never closed.
            let (Ok(room), Ok(handshake)) = (
                Arc::clone(&rooms).acquire_owned().await,
                Arc::clone(&handshakes).acquire_owned().await,
            ) else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let greeting =
                        Arc::clone(&door).greet(stream, room, handshake, incoming.clone());
                    tokio::spawn(greeting);
                }
                Err(error) => {
                    tracing::debug!(%error, "A connection of another agent could not be accepted.");
                    sleep(REST).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accept_all).await;
}

impl Door {
    /// Lets a member in, and sends it out again if it does not begin to talk.
    async fn greet(
        self: Arc<Self>,
        stream: TcpStream,
        room: OwnedSemaphorePermit,
        handshake: OwnedSemaphorePermit,
        incoming: Incoming,
    ) {
        // Without it, a heartbeat may wait for the acknowledgement of the last one.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let shaking = timeout(GREET_WITHIN, self.tls.accept(stream));
        let stream = match self.shared.stop.run_until_cancelled(shaking).await {
            Some(Ok(Ok(stream))) => stream,
            Some(Ok(Err(error))) => {
                tracing::debug!(%error, "A connection that is none of a member was refused.");
                return;
            }
            Some(Err(_)) | None => return,
        };
        drop(handshake);
        let certificate = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(<[_]>::first);
        let Some(certificate) = certificate.map(Fingerprint::of) else {
            return;
        };
        // It may have been accepted a moment ago and not be any more.
        let Some(node) = self.shared.accepted.owner(&certificate) else {
            return;
        };
        let caller = Caller {
            node,
            certificate,
            cut: self.shared.stop.child_token(),
            began: self.shared.stop.child_token(),
        };
        let connection = Connection::new(stream, caller.clone(), room);
        if incoming.send(Ok(connection)).await.is_err() {
            return;
        }
        if timeout(GREET_WITHIN, caller.began.cancelled())
            .await
            .is_err()
        {
            caller.cut.cancel();
            let refused = PeerEvent::Refused {
                node: caller.node,
                at: now(),
                violation: Violation::NoIntroduction(GREET_WITHIN),
            };
            // A hint for a person only.
            drop(self.shared.events.try_send(refused));
        }
    }
}

#[derive(Debug)]
struct Service {
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl Node for Service {
    type SessionStream = ReceiverStream<Result<Order, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<Report>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return Err(Status::unauthenticated("no certificate was shown"));
        };
        caller.began.cancel();
        let (replies, orders) = mpsc::channel(WAITING_ORDERS);
        let session = Session::new(
            caller,
            request.into_inner(),
            replies,
            Arc::clone(&self.shared),
        );
        tokio::spawn(session.run());
        Ok(Response::new(ReceiverStream::new(orders)))
    }
}
