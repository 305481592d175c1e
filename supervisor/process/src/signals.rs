// SPDX-License-Identifier: Apache-2.0
//! Signals as data: blocked for the process and read from a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// A signal that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Which signal.
    pub signal: Signal,
    /// Who sent it; 0 when the kernel or a terminal did.
    pub sender: u32,
}

/// The signals of this process, read as data.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks `wanted` for this thread and reads them from now on. Signals of which the parent has asked that they be
    /// ignored (as `nohup` does with SIGHUP) are left ignored.
    ///
    /// # Errors
    ///
    /// When the mask cannot be changed or no descriptor is left.
    pub fn take_over(wanted: &[Signal]) -> io::Result<Signals> {
        let mut mask = SigSet::empty();
        for &signal in wanted {
            if !is_ignored(signal) {
                mask.add(signal);
            }
        }
        mask.thread_block()?;
        let descriptor =
            SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Signals { descriptor })
    }

    /// The next signal that has arrived, if one has.
    ///
    /// # Errors
    ///
    /// When reading fails for another reason than that nothing is there.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        loop {
            match self.descriptor.read_signal() {
                Ok(None) => return Ok(None),
                Ok(Some(info)) => {
                    let number = i32::try_from(info.ssi_signo).unwrap_or(0);
                    if let Ok(signal) = Signal::try_from(number) {
                        return Ok(Some(Arrived {
                            signal,
                            sender: info.ssi_pid,
                        }));
                    }
                }
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Ignores signals for this process, so that a terminal's Ctrl-C reaches only the keeper.
///
/// # Errors
///
/// When the kernel refuses, as it does for SIGKILL and SIGSTOP.
pub fn ignore(ignored: &[Signal]) -> io::Result<()> {
    for &each in ignored {
        set_disposition(each, SigHandler::SigIgn)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "nix marks every change of a handler as unsafe")]
fn set_disposition(which: Signal, handler: SigHandler) -> io::Result<()> {
    debug_assert!(!matches!(
        handler,
        SigHandler::Handler(_) | SigHandler::SigAction(_)
    ));
    // SAFETY: only SIG_IGN and SIG_DFL are set here, so no code of ours ever runs in a signal handler.
    unsafe { signal(which, handler) }?;
    Ok(())
}

/// Whether the process was started with this signal ignored.
fn is_ignored(signal: Signal) -> bool {
    // The kernel shows the ignored set as a hexadecimal mask; asking `sigaction` would need a write access of its own.
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .unwrap_or(0);
    mask & (1 << (signal as i32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_with_its_sender() {
        // A thread-directed signal, so that other tests in this process are not touched.
        let signals = Signals::take_over(&[Signal::SIGUSR2]).unwrap();
        assert_eq!(signals.next().unwrap(), None);
        nix::sys::pthread::pthread_kill(nix::sys::pthread::pthread_self(), Signal::SIGUSR2)
            .unwrap();
        let arrived = signals.next().unwrap().unwrap();
        assert_eq!(arrived.signal, Signal::SIGUSR2);
        assert_eq!(arrived.sender, std::process::id());
    }

    #[test]
    fn rust_programs_start_with_sigpipe_ignored_and_sigterm_not() {
        assert!(is_ignored(Signal::SIGPIPE));
        assert!(!is_ignored(Signal::SIGTERM));
    }
}
