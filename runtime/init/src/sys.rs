//! Small wrappers over system calls that init and the launcher share.
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Turn a -1 return into the error of errno.
pub fn check(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(code)
    }
}

/// A C string; a NUL inside is an error that names the text.
pub fn cstring(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a NUL byte"))
}

/// Close a descriptor, whatever the outcome.
pub fn close(fd: RawFd) {
    // SAFETY: closing an integer; the caller owns it.
    unsafe { libc::close(fd) };
}

/// A close-on-exec pipe: (read end, write end).
pub fn pipe() -> io::Result<(RawFd, RawFd)> {
    let mut fds = [0; 2];
    // SAFETY: fds has room for two.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((fds[0], fds[1]))
}

/// Make reads and writes of a descriptor return instead of wait.
pub fn nonblocking(fd: RawFd) {
    // SAFETY: fcntl on a descriptor that we own.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
}

/// Read once. Ok(0) is the end; WouldBlock where nothing is there.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of the slice.
    let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    if n < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(n as usize)
    }
}

/// Write once; sockets are written with MSG_NOSIGNAL by the caller's ignoring SIGPIPE.
pub fn write(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of the slice.
    let n = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
    if n < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(n as usize)
    }
}

/// True for errors that mean "try later".
pub fn later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// UTC now, in milliseconds.
pub fn utc_millis() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

/// The text of an errno.
pub fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Use of the sandbox's writable space, in bytes and inodes.
pub fn disk_usage() -> serde_json::Value {
    // SAFETY: a zeroed statvfs is valid, and the path is a C string.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(c"/".as_ptr(), &mut stat) != 0 {
            return serde_json::Value::Null;
        }
        serde_json::json!({
            "used": (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
            "free": stat.f_bavail * stat.f_frsize,
            "inodesFree": stat.f_ffree,
        })
    }
}
