//! One running command: its pipes, its caps, its end.
use crate::cgroup::{Cgroups, Leaf};
use crate::child::{Order, Spawned};
use crate::sys;
use serde_json::{Value, json};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// After the end of the command: how long its pipes may stay silent, and how long in all, before
/// output of processes that it left behind is no longer waited for.
const DRAIN_QUIET: Duration = Duration::from_millis(40);
const DRAIN_MOST: Duration = Duration::from_millis(250);
/// How often an order to kill is repeated until nothing is left.
pub const KILL_AGAIN: Duration = Duration::from_millis(20);

/// A command that init started and has not yet reported as ended.
pub struct Command {
    pub id: u32,
    pub pid: libc::pid_t,
    pub order: Order,
    pub leaf: Option<Leaf>,
    pub outputs: [Option<RawFd>; 2],
    pub fail: Option<RawFd>,
    failure: Vec<u8>,
    pub stdin: Option<RawFd>,
    input: Vec<u8>,
    /// Bytes of output that may still be passed on (exec only).
    pub allowance: u64,
    pub dropped: u64,
    pub deadline: Option<Instant>,
    /// Why init is killing it; empty while it is not.
    pub killed_for: &'static str,
    status: Option<libc::c_int>,
    exited: Option<Instant>,
    last_output: Instant,
}

impl Command {
    /// Take over a started command. `input` is written to its standard input, then EOF.
    pub fn new(
        id: u32,
        order: Order,
        leaf: Option<Leaf>,
        started: Spawned,
        input: Vec<u8>,
    ) -> Self {
        let mut command = Command {
            id,
            pid: started.pid,
            order,
            leaf,
            outputs: started.outputs.map(Some),
            fail: Some(started.fail),
            failure: Vec::new(),
            stdin: Some(started.stdin),
            input,
            allowance: u64::MAX,
            dropped: 0,
            deadline: None,
            killed_for: "",
            status: None,
            exited: None,
            last_output: Instant::now(),
        };
        command.feed();
        command
    }

    /// Write what standard input takes; close it when all is written or nobody reads.
    pub fn feed(&mut self) {
        let Some(fd) = self.stdin else { return };
        while !self.input.is_empty() {
            match sys::write(fd, &self.input) {
                Ok(n) => drop(self.input.drain(..n)),
                Err(e) if sys::later(&e) => return,
                Err(_) => self.input.clear(),
            }
        }
        sys::close(fd);
        self.stdin = None;
    }

    /// Read the fail pipe: it closes on exec, or tells what went wrong.
    pub fn read_failure(&mut self) {
        let Some(fd) = self.fail else { return };
        let mut buffer = [0; 16];
        match sys::read(fd, &mut buffer) {
            Ok(n) if n > 0 => self.failure.extend_from_slice(&buffer[..n]),
            Err(e) if sys::later(&e) => {}
            _ => {
                sys::close(fd);
                self.fail = None;
            }
        }
    }

    /// Output arrived just now.
    pub fn touched(&mut self) {
        self.last_output = Instant::now();
    }

    /// The kernel reported its end.
    pub fn reaped(&mut self, status: libc::c_int) {
        self.status = Some(status);
        self.exited = Some(Instant::now());
        self.touched();
    }

    /// True while the process itself lives.
    pub fn alive(&self) -> bool {
        self.status.is_none()
    }

    /// Kill the whole tree of it, for a reason; repeated by the loop until it is reaped.
    pub fn kill(&mut self, cgroups: &Cgroups, reason: &'static str) {
        if self.killed_for.is_empty() {
            self.killed_for = reason;
        }
        if let Some(leaf) = &self.leaf {
            cgroups.kill(leaf);
        }
        if self.alive() {
            // also where there is no cgroup, and before the child has entered it
            // SAFETY: the process is our unreaped child, so the ids cannot have been reused.
            unsafe {
                libc::kill(-self.pid, libc::SIGKILL);
                libc::kill(self.pid, libc::SIGKILL);
            }
        }
    }

    /// True when it has ended and its output is complete, or no longer worth waiting for.
    pub fn finished(&self) -> bool {
        let Some(exited) = self.exited else {
            return false;
        };
        if self.fail.is_some() {
            return false;
        }
        let silent = self.outputs.iter().all(Option::is_none);
        silent || self.last_output.elapsed() >= DRAIN_QUIET || exited.elapsed() >= DRAIN_MOST
    }

    /// The next moment at which something must be done for it.
    pub fn next_deadline(&self) -> Option<Instant> {
        if let Some(exited) = self.exited {
            return Some((self.last_output + DRAIN_QUIET).min(exited + DRAIN_MOST));
        }
        if !self.killed_for.is_empty() {
            return Some(Instant::now() + KILL_AGAIN);
        }
        self.deadline
    }

    /// How it ended. Exit code and signal are separate; a failed start has neither.
    pub fn end(&self, cgroups: &Cgroups) -> Value {
        let status = self.status.unwrap_or(0);
        if !self.failure.is_empty() {
            let message = self.order.explain(&self.failure);
            return json!({"reason": "start-failed", "message": message});
        }
        let refused = self
            .leaf
            .as_ref()
            .map_or(0, |leaf| cgroups.pids_refused(leaf));
        let (code, signal) = if libc::WIFSIGNALED(status) {
            (Value::Null, json!(libc::WTERMSIG(status)))
        } else {
            (json!(libc::WEXITSTATUS(status)), Value::Null)
        };
        json!({
            "exitCode": code,
            "signal": signal,
            "reason": self.killed_for,
            "message": "",
            "pidsRefused": refused,
            "droppedBytes": self.dropped,
        })
    }
}
