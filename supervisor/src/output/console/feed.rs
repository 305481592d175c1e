// SPDX-License-Identifier: Apache-2.0
//! One stream's way to the console: one block at a time, and what happens when the console does not take it.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::Stream;
use super::super::dropped::in_bytes;
use super::super::layout::ConsoleStyle;
use super::super::lines::End;
use super::PATIENCE;
use super::screen::Pieces;
use super::sink::Sink;

/// Most bytes kept for a console that is stalled.
const BACKLOG_BYTES: usize = 256 * 1024;

/// What a stream has for the console. Positions are bytes of the stream, counted from when it was attached.
#[derive(Debug)]
pub(in super::super) struct Feed {
    sink: Arc<Sink>,
    stream: Stream,
    style: ConsoleStyle,
    prefix: String,
    pending: Pieces,
    raw: Vec<u8>,
    /// Everything before this position was pushed or dropped.
    pushed: u64,
    /// Everything before this position is on the console or was dropped.
    shown: u64,
    block: Option<Block>,
    lost: Lost,
}

#[derive(Debug)]
struct Block {
    written: oneshot::Receiver<()>,
    /// Position up to which the block reaches.
    upto: u64,
    progress: u64,
    since: Instant,
    stalled: bool,
}

/// What was dropped since the console was last told.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Lost {
    pub(in super::super) bytes: u64,
    pub(in super::super) lines: u64,
}

impl Feed {
    pub(super) fn new(
        sink: Arc<Sink>,
        stream: Stream,
        style: ConsoleStyle,
        prefix: String,
    ) -> Self {
        Self {
            sink,
            stream,
            prefix: if style == ConsoleStyle::Prefixed {
                prefix
            } else {
                String::new()
            },
            style,
            pending: Pieces::default(),
            raw: Vec::new(),
            pushed: 0,
            shown: 0,
            block: None,
            lost: Lost::default(),
        }
    }

    /// Whether the stream's bytes are passed on as they are, by [`Feed::push_raw`].
    pub(in super::super) fn is_raw(&self) -> bool {
        self.style == ConsoleStyle::Raw
    }

    /// Takes a piece. Returns what had to be dropped of it.
    pub(in super::super) fn push(&mut self, piece: &[u8], end: End) -> Lost {
        if self.is_full() {
            return self.lose(piece.len() as u64 + 1, u64::from(end == End::Line));
        }
        self.pending.push(piece, end);
        Lost::default()
    }

    /// Takes bytes that are passed on as they are. Returns what had to be dropped of them.
    pub(in super::super) fn push_raw(&mut self, bytes: &[u8]) -> Lost {
        if self.is_full() {
            return self.lose(
                bytes.len() as u64,
                memchr::memchr_iter(b'\n', bytes).count() as u64,
            );
        }
        self.raw.extend_from_slice(bytes);
        Lost::default()
    }

    /// Says that everything before `position` was pushed.
    pub(in super::super) fn pushed_upto(&mut self, position: u64) {
        self.pushed = position;
        if self.block.is_none() && self.pending.is_empty() && self.raw.is_empty() {
            self.shown = position;
        }
    }

    /// Queues what was pushed, unless the console still has a block of this stream.
    pub(in super::super) fn submit(&mut self) {
        if self.block.is_some() || (self.pending.is_empty() && self.raw.is_empty()) {
            return;
        }
        let notice = self.notice();
        let pending = std::mem::take(&mut self.pending);
        let raw = std::mem::take(&mut self.raw);
        let written = self.sink.submit(|screen| {
            let mut bytes = notice
                .map(|notice| screen.own_line(&notice))
                .unwrap_or_default();
            bytes.extend(match self.style {
                ConsoleStyle::Raw => screen.raw(self.stream, &raw),
                ConsoleStyle::Plain | ConsoleStyle::Prefixed => {
                    screen.lines(self.stream, &self.prefix, &pending)
                }
            });
            bytes
        });
        let (upto, progress) = (self.pushed, self.sink.progress());
        self.block = Some(Block {
            written,
            upto,
            progress,
            since: Instant::now(),
            stalled: false,
        });
    }

    /// Waits until the block that the console has is written. Only to be called if it has one.
    pub(in super::super) async fn written(&mut self) {
        if let Some(block) = &mut self.block {
            // A console thread that is gone shows nothing any more, which must not hold up anything either.
            let _gone = (&mut block.written).await;
        }
    }

    /// Notes that the block is written.
    pub(in super::super) fn block_written(&mut self) {
        if let Some(block) = self.block.take() {
            self.shown = self.shown.max(block.upto);
        }
    }

    /// Whether the console has a block of this stream.
    pub(in super::super) fn is_waiting(&self) -> bool {
        self.block.is_some()
    }

    /// The position up to which the log file may have the stream, of which `seen` bytes were seen. A stalled console
    /// holds up nothing.
    pub(in super::super) fn settled(&self, seen: u64) -> u64 {
        if self.is_stalled() { seen } else { self.shown }
    }

    /// Whether the console has everything.
    pub(in super::super) fn is_idle(&self) -> bool {
        self.block.is_none() && self.pending.is_empty() && self.raw.is_empty()
    }

    /// When [`Feed::expire`] wants to be called.
    pub(in super::super) fn deadline(&self) -> Option<Instant> {
        self.block
            .as_ref()
            .filter(|block| !block.stalled)
            .map(|block| block.since + PATIENCE)
    }

    /// Notices a stall.
    pub(in super::super) fn expire(&mut self, now: Instant) {
        if let Some(block) = &mut self.block
            && now >= block.since + PATIENCE
        {
            let progress = self.sink.progress();
            block.stalled |= progress == block.progress;
            (block.progress, block.since) = (progress, now);
        }
    }

    fn is_stalled(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.stalled)
    }

    fn is_full(&self) -> bool {
        self.is_stalled() && self.pending.bytes() + self.raw.len() > BACKLOG_BYTES
    }

    fn lose(&mut self, bytes: u64, lines: u64) -> Lost {
        self.lost.bytes += bytes;
        self.lost.lines += lines;
        Lost { bytes, lines }
    }

    /// What the console is told about what it missed. It stands before what was kept, since it is written first: the
    /// gap itself comes after the lines that were kept.
    fn notice(&mut self) -> Option<String> {
        let lost = std::mem::take(&mut self.lost);
        (lost.bytes > 0).then(|| {
            format!(
                "[steadfast] the console was stalled: {} lines ({}) of rank {}'s {} are not shown",
                lost.lines,
                in_bytes(lost.bytes),
                self.stream.rank,
                self.stream.kind.name()
            )
        })
    }
}
