// SPDX-License-Identifier: Apache-2.0
//! Messages with descriptors between two processes of one program, over a socket pair.
//!
//! Each message is one packet, so a peer that dies in the middle leaves no half message. What does not fit into a packet
//! travels in a memory file.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

use crate::memory_file;

/// Bodies up to this length travel in the packet itself.
const INLINE_BYTES: usize = 48 * 1024;
/// The kernel's limit is 253 a message.
const MOST_DESCRIPTORS: usize = 64;
/// No message of ours comes near; it keeps a confused peer from filling memory.
const MOST_BYTES: u64 = 256 * 1024 * 1024;

const INLINE: u8 = 0;
const IN_FILE: u8 = 1;

/// One end of a message channel. It never blocks.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

/// A message as it arrived.
#[derive(Debug)]
pub struct Message {
    /// What the peer sent.
    pub body: Vec<u8>,
    /// The descriptors that came with it, in the order in which they were sent.
    pub descriptors: Vec<OwnedFd>,
}

/// What [`Channel::receive`] found.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Message),
    /// Nothing is there now.
    Nothing,
    /// The peer is gone and everything that it sent was read.
    Closed,
}

impl Channel {
    /// Two connected ends, both closed on `execve`.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel { socket: one }, Channel { socket: other }))
    }

    /// Takes over the end that the parent handed to this process as descriptor 3, and closes it for children. To be
    /// called once, before anything else opens descriptors.
    ///
    /// # Errors
    ///
    /// When descriptor 3 is not a socket.
    #[expect(unsafe_code, reason = "an inherited descriptor is a bare number")]
    pub fn inherited() -> io::Result<Channel> {
        use std::os::fd::FromRawFd;
        let kind = rustix::fs::fstat(
            // SAFETY: borrowed for the length of this call; a number that is not open makes `fstat` fail, no more.
            unsafe { BorrowedFd::borrow_raw(3) },
        )?;
        if rustix::fs::FileType::from_raw_mode(kind.st_mode) != rustix::fs::FileType::Socket {
            return Err(io::Error::other("descriptor 3 is no socket"));
        }
        // SAFETY: it is open (checked above) and the contract of this function makes us its only owner.
        let socket = unsafe { OwnedFd::from_raw_fd(3) };
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Channel { socket })
    }

    /// Sends one message. Returns whether it was taken: `false` means that the peer reads too slowly, try again later.
    ///
    /// # Errors
    ///
    /// When the peer is gone ([`io::ErrorKind::BrokenPipe`]), or `descriptors` has more than 63 entries.
    pub fn send(&self, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
        if descriptors.len() >= MOST_DESCRIPTORS {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        if body.len() <= INLINE_BYTES {
            return self.send_packet(&[IoSlice::new(&[INLINE]), IoSlice::new(body)], descriptors);
        }
        let file = memory_file::with_content("steadfast-message", body)?;
        let mut with_file = vec![file.as_fd()];
        with_file.extend_from_slice(descriptors);
        self.send_packet(&[IoSlice::new(&[IN_FILE])], &with_file)
    }

    /// Receives the next message, if one is there.
    ///
    /// # Errors
    ///
    /// When reading fails or the packet is none of ours.
    pub fn receive(&self) -> io::Result<Received> {
        let mut packet = vec![0_u8; INLINE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = loop {
            let result = recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut packet)],
                &mut ancillary,
                flags,
            );
            match result {
                Ok(received) => break received,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
                // The peer went without reading everything. The kernel says so once, before it hands out what the peer
                // had sent until then.
                Err(Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(io::Error::other(
                "a message arrived cut short (out of descriptors?)",
            ));
        }
        packet.truncate(received.bytes);
        let body = match packet.remove(0) {
            INLINE => packet,
            IN_FILE if !descriptors.is_empty() => {
                memory_file::read_all(&mut File::from(descriptors.remove(0)), MOST_BYTES)?
            }
            _ => return Err(io::Error::other("a message of an unknown kind")),
        };
        Ok(Received::Message(Message { body, descriptors }))
    }

    fn send_packet(
        &self,
        parts: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        match sendmsg(
            &self.socket,
            parts,
            &mut ancillary,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Ok(false),
            // How the kernel says, once, that the peer went without reading everything; later it is EPIPE.
            Err(Errno::CONNRESET) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::os::fd::AsRawFd for Channel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::Pipe;
    use std::io::{Read, Write};

    fn next(channel: &Channel) -> Message {
        match channel.receive().unwrap() {
            Received::Message(message) => message,
            other => panic!("expected a message, got {other:?}"),
        }
    }

    #[test]
    fn small_and_large_messages_arrive_whole_and_in_order() {
        let (one, other) = Channel::pair().unwrap();
        let large = vec![7_u8; 3 * 1024 * 1024];
        assert!(one.send(b"small", &[]).unwrap());
        assert!(one.send(&large, &[]).unwrap());
        assert_eq!(next(&other).body, b"small");
        assert_eq!(next(&other).body, large);
        assert!(matches!(other.receive().unwrap(), Received::Nothing));
        drop(one);
        assert!(matches!(other.receive().unwrap(), Received::Closed));
    }

    #[test]
    fn the_last_words_of_a_peer_that_went_without_reading_are_heard() {
        let (one, other) = Channel::pair().unwrap();
        assert!(one.send(b"never read", &[]).unwrap());
        assert!(other.send(b"last words", &[]).unwrap());
        drop(other);
        assert_eq!(next(&one).body, b"last words");
        assert!(matches!(one.receive().unwrap(), Received::Closed));
    }

    #[test]
    fn a_peer_that_is_gone_is_a_broken_pipe_whether_it_had_read_everything_or_not() {
        for unread in [false, true] {
            let (one, other) = Channel::pair().unwrap();
            if unread {
                assert!(one.send(b"never read", &[]).unwrap());
            }
            drop(other);
            for _ in 0..2 {
                let error = one.send(b"to nobody", &[]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "unread: {unread}");
            }
        }
    }

    #[test]
    fn descriptors_travel_with_a_message_also_with_a_large_one() {
        let (one, other) = Channel::pair().unwrap();
        for body in [vec![1], vec![1; INLINE_BYTES + 1]] {
            let pipe = Pipe::with_capacity(4096).unwrap();
            assert!(one.send(&body, &[pipe.read.as_fd()]).unwrap());
            File::from(pipe.write).write_all(b"through").unwrap();
            let message = next(&other);
            assert_eq!(message.body, body);
            let mut text = String::new();
            let [read] = <[OwnedFd; 1]>::try_from(message.descriptors).unwrap();
            File::from(read).read_to_string(&mut text).unwrap();
            assert_eq!(text, "through");
        }
    }

    #[test]
    fn a_peer_that_does_not_read_is_told_apart_from_one_that_is_gone() {
        let (one, other) = Channel::pair().unwrap();
        let body = vec![0; 40_000];
        let mut sent = 0;
        while one.send(&body, &[]).unwrap() {
            sent += 1;
            assert!(sent < 10_000, "the socket never fills");
        }
        drop(other);
        assert!(one.send(&body, &[]).is_err());
    }
}
