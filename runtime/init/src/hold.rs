//! On the host: hold a file system still while it is copied, for as long as whoever asked lives.
//!
//! The agent holds the other end of standard input. When it is done, or is killed, the input ends
//! and the file system goes on; nothing stays frozen because a process died.
use crate::sys;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

/// FIFREEZE and FITHAW of linux/fs.h: `_IOWR('X', 119, int)` and the next one.
const FREEZE: libc::c_ulong = 0xC004_5877;
const THAW: libc::c_ulong = 0xC004_5878;
/// Longest time that a file system is held, in milliseconds.
const MOST: libc::c_int = 300_000;

fn order(file: &File, request: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the kernel ignores the argument of both requests.
    sys::check(unsafe { libc::ioctl(file.as_raw_fd(), request as _, 0) }).map(drop)
}

/// Wait for the end of standard input, at most so many milliseconds.
fn wait(input: libc::c_int, most: libc::c_int) {
    let mut polled = libc::pollfd {
        fd: input,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives for the call.
    unsafe { libc::poll(&mut polled, 1, most) };
}

/// Freeze the file system of a path, say `frozen`, wait, thaw it. Says `unsupported` at once where
/// it cannot be frozen: memory, or one that others share.
pub fn hold(path: &str) -> Result<(), String> {
    let file = File::open(path).map_err(|e| format!("{path}: {e}"))?;
    let mut out = io::stdout();
    match order(&file, FREEZE) {
        Ok(()) => {}
        // somebody holds it already, who may have died: it is thawed at the end either way
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            return writeln!(out, "unsupported").map_err(|e| e.to_string());
        }
        Err(e) => return Err(format!("cannot freeze: {e}")),
    }
    let told = writeln!(out, "frozen").and_then(|()| out.flush());
    if told.is_ok() {
        wait(0, MOST);
    }
    order(&file, THAW).map_err(|e| format!("cannot thaw: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_with_the_input_and_with_its_time() {
        let (read, write) = sys::pipe().unwrap();
        wait(read, 1);
        sys::close(write);
        wait(read, 60_000);
        sys::close(read);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        assert!(hold("/no/such").unwrap_err().starts_with("/no/such: "));
    }
}
