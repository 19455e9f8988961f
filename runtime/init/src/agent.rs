//! The connection to the agent: one at a time, the newest wins, and never the guest.
use crate::frames::{self, Frame};
use crate::sys;
use std::os::fd::RawFd;

/// Above this many unsent bytes no more output of execs is read.
const HIGH_WATER: usize = 4 << 20;

/// The listening socket and the connection, if there is one.
pub struct AgentLink {
    pub listener: RawFd,
    pub connection: Option<RawFd>,
    received: Vec<u8>,
    unsent: Vec<u8>,
    sent: usize,
}

/// Only root outside of this pid namespace may speak here: its pid shows as 0 inside.
fn is_agent(fd: RawFd) -> bool {
    let mut peer = libc::ucred {
        pid: -1,
        uid: 1,
        gid: 1,
    };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure and its size match.
    let code = unsafe {
        let out = (&raw mut peer).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, out, &mut size)
    };
    code == 0 && peer.uid == 0 && peer.pid == 0
}

impl AgentLink {
    /// Serve the listening socket that the agent handed over.
    pub fn new(listener: RawFd) -> AgentLink {
        sys::nonblocking(listener);
        AgentLink {
            listener,
            connection: None,
            received: vec![],
            unsent: vec![],
            sent: 0,
        }
    }

    /// Take a new connection; true when one is there. It replaces the old one.
    pub fn accept(&mut self) -> bool {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no address is asked for.
        let fd = unsafe {
            libc::accept4(
                self.listener,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            )
        };
        if fd < 0 {
            return false;
        }
        if !is_agent(fd) {
            sys::close(fd);
            return false;
        }
        self.drop_connection();
        self.connection = Some(fd);
        true
    }

    /// Forget the connection and everything unsent.
    pub fn drop_connection(&mut self) {
        if let Some(fd) = self.connection.take() {
            sys::close(fd);
        }
        self.received.clear();
        self.unsent.clear();
        self.sent = 0;
    }

    /// Queue a frame, if an agent is connected; `flush` sends it.
    pub fn send(&mut self, kind: u8, id: u32, payload: &[u8]) {
        if self.connection.is_some() {
            frames::put(&mut self.unsent, kind, id, payload);
        }
    }

    /// True while the agent reads slower than commands write.
    pub fn congested(&self) -> bool {
        self.unsent.len() - self.sent > HIGH_WATER
    }

    /// True while bytes wait to be sent.
    pub fn pending(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Send what the socket takes.
    pub fn flush(&mut self) {
        let Some(fd) = self.connection else { return };
        while self.sent < self.unsent.len() {
            match sys::write(fd, &self.unsent[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if sys::later(&e) => break,
                Err(_) => return self.drop_connection(),
            }
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
        } else if self.sent > HIGH_WATER {
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Read what is there; returns whole frames. A broken protocol ends the connection.
    pub fn read(&mut self) -> Vec<Frame> {
        let Some(fd) = self.connection else {
            return vec![];
        };
        let mut buffer = vec![0; 64 << 10];
        let mut list = Vec::new();
        loop {
            match sys::read(fd, &mut buffer) {
                Ok(0) => {
                    self.drop_connection();
                    break;
                }
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(e) if sys::later(&e) => break,
                Err(_) => {
                    self.drop_connection();
                    break;
                }
            }
        }
        loop {
            match frames::take(&mut self.received) {
                Ok(Some(frame)) => list.push(frame),
                Ok(None) => return list,
                Err(why) => {
                    eprintln!("dsec-init: agent connection dropped: {why}");
                    self.drop_connection();
                    return list;
                }
            }
        }
    }
}
