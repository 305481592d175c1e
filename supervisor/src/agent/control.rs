// SPDX-License-Identifier: Apache-2.0
//! The control socket: how a person or a script talks to the job.
//!
//! Only processes of the same user (or root) are answered. The directory is private as well; this is the second lock.

use std::io;
use std::path::Path;

use steadfast_proto::v1::control_server::{Control, ControlServer};
use steadfast_proto::v1::{
    CheckpointReply, CheckpointRequest, DrainReply, DrainRequest, RestartReply, RestartRequest,
    StatusReply, StatusRequest, StopReply, StopRequest,
};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

/// Something that was asked over the socket.
#[derive(Debug)]
pub(super) enum ControlRequest {
    /// How is the job?
    Status(oneshot::Sender<StatusReply>),
    /// End it.
    Stop(StopRequest, oneshot::Sender<StopReply>),
    /// Leave this generation and start the next.
    Restart(RestartRequest, oneshot::Sender<RestartReply>),
    /// Make a checkpoint.
    Checkpoint(CheckpointRequest, oneshot::Sender<CheckpointReply>),
    /// Take this node out of it.
    Drain(DrainRequest, oneshot::Sender<DrainReply>),
}

/// Serves the socket at `path` until the process ends.
///
/// # Errors
///
/// When the socket cannot be made.
pub(super) fn serve(path: &Path, requests: mpsc::Sender<ControlRequest>) -> io::Result<()> {
    // A predecessor of this agent may have left it; the keeper's lock says that nobody else serves it.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let server = Server::builder()
        .add_service(ControlServer::new(Service { requests }).max_decoding_message_size(64 * 1024))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::warn!(%error, "The control socket is no longer served.");
        }
    });
    Ok(())
}

#[derive(Debug)]
struct Service {
    requests: mpsc::Sender<ControlRequest>,
}

impl Service {
    async fn ask<Reply>(
        &self,
        make: impl FnOnce(oneshot::Sender<Reply>) -> ControlRequest,
    ) -> Result<Response<Reply>, Status> {
        let ending = || Status::unavailable("the job is ending");
        let (sender, reply) = oneshot::channel();
        self.requests
            .send(make(sender))
            .await
            .map_err(|_| ending())?;
        reply.await.map(Response::new).map_err(|_| ending())
    }
}

#[tonic::async_trait]
impl Control for Service {
    async fn status(
        &self,
        request: Request<StatusRequest>,
    ) -> Result<Response<StatusReply>, Status> {
        authorise(&request)?;
        self.ask(ControlRequest::Status).await
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopReply>, Status> {
        authorise(&request)?;
        let stop = request.into_inner();
        check_grace(stop.grace_seconds)?;
        self.ask(|reply| ControlRequest::Stop(stop, reply)).await
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartReply>, Status> {
        authorise(&request)?;
        let restart = request.into_inner();
        self.ask(|reply| ControlRequest::Restart(restart, reply))
            .await
    }

    async fn checkpoint(
        &self,
        request: Request<CheckpointRequest>,
    ) -> Result<Response<CheckpointReply>, Status> {
        authorise(&request)?;
        let checkpoint = request.into_inner();
        self.ask(|reply| ControlRequest::Checkpoint(checkpoint, reply))
            .await
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainReply>, Status> {
        authorise(&request)?;
        let drain = request.into_inner();
        check_grace(drain.grace_seconds)?;
        self.ask(|reply| ControlRequest::Drain(drain, reply)).await
    }
}

fn check_grace(seconds: Option<f64>) -> Result<(), Status> {
    if seconds.is_some_and(|grace| !(0.0..=1e9).contains(&grace)) {
        return Err(Status::invalid_argument(
            "grace_seconds must be between 0 and 1e9",
        ));
    }
    Ok(())
}

fn authorise<Message>(request: &Request<Message>) -> Result<(), Status> {
    let peer = request
        .extensions()
        .get::<UdsConnectInfo>()
        .and_then(|info| info.peer_cred);
    let own = nix::unistd::geteuid().as_raw();
    match peer {
        Some(peer) if peer.uid() == own || peer.uid() == 0 => Ok(()),
        _ => Err(Status::permission_denied(
            "only the user who started the job may control it",
        )),
    }
}
