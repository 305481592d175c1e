// SPDX-License-Identifier: Apache-2.0
//! A client that sends what it likes: any messages, or any bytes as messages.

use prost::Message as _;
use steadfast_proto::v1::{EvidenceChunk, Heartbeat, Hello, Order, Report, report};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::bytes::BufMut as _;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status, Streaming};

use super::*;
use crate::peers::client::dial;

/// What a client has sent, and the other end's answers.
pub(super) struct RawStream {
    sender: mpsc::Sender<Vec<u8>>,
    pub(super) orders: Streaming<Order>,
}

impl RawStream {
    /// With a certificate that is accepted.
    pub(super) async fn open(leader: &Leader, node: &Node) -> Self {
        let channel = dial::dial(&node.identity, leader.server.endpoint())
            .await
            .unwrap();
        let (sender, messages) = mpsc::channel(1);
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let orders = client
            .streaming(
                Request::new(ReceiverStream::new(messages)),
                "/steadfast.v1.Node/Session".parse().unwrap(),
                Raw,
            )
            .await
            .unwrap()
            .into_inner();
        Self { sender, orders }
    }

    /// False when the other end takes no more.
    pub(super) async fn send(&self, kind: report::Kind) -> bool {
        let report = Report { kind: Some(kind) };
        self.send_bytes(report.encode_to_vec()).await
    }

    pub(super) async fn send_bytes(&self, bytes: Vec<u8>) -> bool {
        self.sender.send(bytes).await.is_ok()
    }

    /// Sends no more and waits for the end.
    pub(super) async fn finish(mut self) {
        // Closed by replacing it with one that nobody reads.
        self.sender = mpsc::channel(1).0;
        self.status().await;
    }

    /// With what status the other end ends it.
    pub(super) async fn status(&mut self) -> Status {
        let reading = async {
            loop {
                match self.orders.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Status::ok(""),
                    Err(status) => return status,
                }
            }
        };
        timeout(PATIENCE, reading).await.unwrap()
    }
}

pub(super) fn hello(node: &str) -> Hello {
    Hello {
        protocol_version: PEER_PROTOCOL_VERSION,
        job: "job".to_owned(),
        node: node.to_owned(),
        incarnation: 7,
    }
}

pub(super) fn heartbeat() -> report::Kind {
    report::Kind::Heartbeat(Heartbeat::default())
}

pub(super) fn piece(id: u64, length: usize, last: bool) -> report::Kind {
    report::Kind::Evidence(EvidenceChunk {
        id,
        data: vec![0; length],
        last,
        failure: String::new(),
    })
}

/// Sends bytes as they are, reads orders.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Order;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Order;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Order>, Status> {
        Order::decode(buffer)
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}
