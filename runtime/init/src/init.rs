//! The loop of PID 1: one thread, one poll, nothing that waits.
mod orders;

use crate::agent::AgentLink;
use crate::cgroup::{Cgroups, Leaf};
use crate::command::{Command, KILL_AGAIN};
use crate::frames;
use crate::heartbeat::{Endpoint, Expected};
use crate::ring::Ring;
use crate::sys;
use serde_json::{Value, json};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

const MAIN: u32 = 0;
const READ_SIZE: usize = 256 << 10;
const MOUNT_POLL: Duration = Duration::from_secs(1);

/// The start order, kept until the mounts are there.
struct Waiting {
    value: Value,
    input: Vec<u8>,
    tries_left: u64,
    next_try: Instant,
}

enum Phase {
    Idle,
    Waiting(Waiting),
    Running,
    Ended(Value),
}

/// What a polled descriptor is.
#[derive(Clone, Copy)]
enum Source {
    Signals,
    Listener,
    Agent,
    Endpoint,
    Output(usize, usize),
    Failure(usize),
    Stdin(usize),
    Stray(usize),
}

/// All that init knows.
pub struct Init {
    signals: RawFd,
    link: AgentLink,
    endpoint: Option<Endpoint>,
    rings: [Ring; 2],
    end_file: RawFd,
    cgroups: Cgroups,
    phase: Phase,
    commands: Vec<Command>,
    /// Pipes that processes left behind still hold; read and thrown away.
    strays: Vec<RawFd>,
    /// Leaves of ended commands that still have processes.
    lingering: Vec<Leaf>,
    /// The newest heartbeat that no agent has been told.
    untold: Option<Vec<u8>>,
    registered: bool,
    /// A reader of the logs waits for the next output.
    armed: bool,
    own_beat: Option<(Instant, Duration)>,
    hard_cap: u64,
    stop_requested: bool,
    kill_all_at: Option<Instant>,
    buffer: Vec<u8>,
}

/// Descriptors that the launcher passes, in this order from 3.
pub struct Handed {
    pub listener: RawFd,
    pub rings: [RawFd; 2],
    pub end_file: RawFd,
    pub cgroups: Cgroups,
}

fn block_signals() -> io::Result<RawFd> {
    // SAFETY: the set lives for the calls; the descriptor is checked.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        sys::check(libc::sigprocmask(
            libc::SIG_BLOCK,
            &set,
            std::ptr::null_mut(),
        ))?;
        sys::check(libc::signalfd(
            -1,
            &set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))
    }
}

impl Init {
    /// Take over what the launcher handed down.
    pub fn new(handed: Handed, expected: Expected) -> io::Result<Init> {
        let endpoint = Endpoint::open(expected)
            .inspect_err(|e| eprintln!("dsec-init: no heartbeat endpoint: {e}"))
            .ok();
        Ok(Init {
            signals: block_signals()?,
            link: AgentLink::new(handed.listener),
            endpoint,
            rings: [Ring::map(handed.rings[0])?, Ring::map(handed.rings[1])?],
            end_file: handed.end_file,
            cgroups: handed.cgroups,
            phase: Phase::Idle,
            commands: Vec::new(),
            strays: Vec::new(),
            lingering: Vec::new(),
            untold: None,
            registered: false,
            armed: false,
            own_beat: None,
            hard_cap: u64::MAX,
            stop_requested: false,
            kill_all_at: None,
            buffer: vec![0; READ_SIZE],
        })
    }

    /// Run for the life of the sandbox.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            let (mut polled, sources) = self.poll_set();
            let timeout = self.timeout();
            // SAFETY: pointer and length are those of the vector.
            let count =
                unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
            if count < 0 {
                let error = io::Error::last_os_error();
                if !sys::later(&error) {
                    return Err(error);
                }
                continue;
            }
            for (entry, source) in polled.iter().zip(&sources) {
                if entry.revents != 0 {
                    self.handle(*source, entry.fd);
                }
            }
            self.strays.retain(|fd| *fd >= 0);
            self.clockwork();
            self.collect_finished();
            self.link.flush();
            self.mind_the_agent();
        }
    }

    fn poll_set(&self) -> (Vec<libc::pollfd>, Vec<Source>) {
        let mut polled = Vec::new();
        let mut sources = Vec::new();
        let mut add = |fd: RawFd, events: libc::c_short, source: Source| {
            polled.push(libc::pollfd {
                fd,
                events,
                revents: 0,
            });
            sources.push(source);
        };
        add(self.signals, libc::POLLIN, Source::Signals);
        add(self.link.listener, libc::POLLIN, Source::Listener);
        if let Some(fd) = self.link.connection {
            let out = if self.link.pending() {
                libc::POLLOUT
            } else {
                0
            };
            add(fd, libc::POLLIN | out, Source::Agent);
        }
        for (fd, events) in self.endpoint.iter().flat_map(Endpoint::descriptors) {
            add(fd, events, Source::Endpoint);
        }
        let congested = self.link.congested();
        for (at, command) in self.commands.iter().enumerate() {
            for (which, fd) in command.outputs.iter().enumerate() {
                if let Some(fd) = fd
                    && (command.id == MAIN || !congested)
                {
                    add(*fd, libc::POLLIN, Source::Output(at, which));
                }
            }
            if let Some(fd) = command.fail {
                add(fd, libc::POLLIN, Source::Failure(at));
            }
            if let Some(fd) = command.stdin {
                add(fd, libc::POLLOUT, Source::Stdin(at));
            }
        }
        for (at, fd) in self.strays.iter().enumerate() {
            add(*fd, libc::POLLIN, Source::Stray(at));
        }
        (polled, sources)
    }

    /// Milliseconds until the clock must be looked at; -1 for never.
    fn timeout(&self) -> libc::c_int {
        let congested = self.link.congested();
        let awake = self
            .commands
            .iter()
            .filter(|c| c.id == MAIN || c.alive() || !congested);
        let mut next: Vec<Instant> = awake.filter_map(Command::next_deadline).collect();
        next.extend(self.endpoint.as_ref().and_then(Endpoint::next_deadline));
        next.extend(self.own_beat.map(|(at, _)| at));
        next.extend(self.kill_all_at);
        if let Phase::Waiting(waiting) = &self.phase {
            next.push(waiting.next_try);
        }
        match next.iter().min() {
            None => -1,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                // one more, so that the moment has passed when poll returns
                (left.as_millis() as libc::c_int).saturating_add(1)
            }
        }
    }

    fn handle(&mut self, source: Source, fd: RawFd) {
        match source {
            Source::Signals => self.reap(),
            Source::Listener => {
                if self.link.accept() {
                    // what the agent before was asked, nobody answers any more
                    self.endpoint.iter_mut().for_each(Endpoint::forsake);
                    self.greet();
                }
            }
            Source::Agent => {
                self.link.flush();
                for frame in self.link.read() {
                    self.obey(frame);
                }
            }
            Source::Endpoint => self.serve_endpoint(),
            Source::Output(at, which) => self.read_output(at, which, fd),
            Source::Failure(at) => {
                if let Some(command) = self.commands.get_mut(at) {
                    command.read_failure();
                }
            }
            Source::Stdin(at) => {
                if let Some(command) = self.commands.get_mut(at) {
                    command.feed();
                }
            }
            Source::Stray(at) => {
                let ended = match sys::read(fd, &mut self.buffer) {
                    Ok(n) => n == 0,
                    Err(e) => !sys::later(&e),
                };
                if ended {
                    sys::close(fd);
                    self.strays[at] = -1;
                }
            }
        }
    }

    /// Answer heartbeats, and pass calls on to the agent.
    fn serve_endpoint(&mut self) {
        let Some(endpoint) = self.endpoint.as_mut() else {
            return;
        };
        let served = endpoint.serve();
        for beat in served.beats {
            self.beat(&beat, "program");
        }
        for call in served.calls {
            let head = json!({"method": call.method, "path": call.path});
            let payload = frames::join_order(&head, &call.body);
            self.link.send(frames::CALL, call.id, &payload);
        }
    }

    /// Tell programs that wait for the agent when it is gone.
    fn mind_the_agent(&mut self) {
        if self.link.connection.is_none()
            && let Some(endpoint) = self.endpoint.as_mut()
            && endpoint.forwards
        {
            endpoint.forsake();
        }
    }

    fn read_output(&mut self, at: usize, which: usize, fd: RawFd) {
        let Some(command) = self.commands.get_mut(at) else {
            return;
        };
        let data = match sys::read(fd, &mut self.buffer) {
            Ok(0) => &self.buffer[..0],
            Ok(n) => &self.buffer[..n],
            Err(e) if sys::later(&e) => return,
            Err(_) => &self.buffer[..0],
        };
        if data.is_empty() {
            sys::close(fd);
            command.outputs[which] = None;
            return;
        }
        command.touched();
        if command.id == MAIN {
            self.rings[which].write(data);
            if self.rings[which].total() > self.hard_cap && command.killed_for.is_empty() {
                command.kill(&self.cgroups, "output-limit");
            }
            if self.armed {
                self.armed = false;
                self.link.send(frames::NOTE, MAIN, b"");
            }
            return;
        }
        let kept = data
            .len()
            .min(usize::try_from(command.allowance).unwrap_or(usize::MAX));
        command.allowance -= kept as u64;
        command.dropped += (data.len() - kept) as u64;
        if kept > 0 {
            let kind = if which == 0 {
                frames::STDOUT
            } else {
                frames::STDERR
            };
            self.link.send(kind, command.id, &data[..kept]);
        }
    }

    /// Take every ended process, ours or orphaned.
    fn reap(&mut self) {
        let mut info = [0; 128];
        while sys::read(self.signals, &mut info).is_ok() {}
        loop {
            let mut status = 0;
            // SAFETY: status is valid for the call.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if pid <= 0 {
                break;
            }
            if let Some(command) = self.commands.iter_mut().find(|c| c.pid == pid && c.alive()) {
                command.reaped(status);
            }
        }
        for leaf in std::mem::take(&mut self.lingering) {
            self.lingering.extend(self.cgroups.remove(leaf));
        }
    }

    fn clockwork(&mut self) {
        let now = Instant::now();
        if self
            .endpoint
            .as_ref()
            .and_then(Endpoint::next_deadline)
            .is_some_and(|at| at <= now)
        {
            self.serve_endpoint();
        }
        if let Phase::Waiting(waiting) = &self.phase
            && waiting.next_try <= now
        {
            self.try_start();
        }
        if let Some((at, interval)) = self.own_beat
            && at <= now
        {
            self.beat_self();
            self.own_beat = Some((now + interval, interval));
        }
        if self.kill_all_at.is_some_and(|at| at <= now) {
            for command in &mut self.commands {
                command.kill(&self.cgroups, "stopped");
            }
            self.lingering
                .iter()
                .for_each(|leaf| self.cgroups.kill(leaf));
            self.kill_all_at = Some(now + KILL_AGAIN);
        }
        for command in self.commands.iter_mut().filter(|c| c.alive()) {
            if command.deadline.is_some_and(|at| at <= now) {
                command.kill(&self.cgroups, "timeout");
            } else if !command.killed_for.is_empty() {
                let reason = command.killed_for;
                command.kill(&self.cgroups, reason);
            }
        }
    }

    /// Report the commands that are done, and put away what they leave.
    fn collect_finished(&mut self) {
        let mut at = 0;
        while at < self.commands.len() {
            // an exec whose output waits for a slow agent is not complete
            let waits = self.link.congested() && self.commands[at].id != MAIN;
            if waits || !self.commands[at].finished() {
                at += 1;
                continue;
            }
            let mut command = self.commands.swap_remove(at);
            let mut end = command.end(&self.cgroups);
            self.strays.extend(command.outputs.iter().flatten());
            command.stdin.take().into_iter().for_each(sys::close);
            if command.id == MAIN {
                if let Some(leaf) = &command.leaf {
                    // nothing of the main command's tree outlives it
                    self.cgroups.kill(leaf);
                }
                end["stopRequested"] = json!(self.stop_requested);
                end["disk"] = sys::disk_usage();
                self.finish(end);
            } else {
                self.link
                    .send(frames::EXIT, command.id, end.to_string().as_bytes());
                if !command.killed_for.is_empty()
                    && let Some(leaf) = &command.leaf
                {
                    self.cgroups.kill(leaf);
                }
                if let Some(leaf) = command.leaf {
                    self.lingering.extend(self.cgroups.remove(leaf));
                }
            }
        }
    }
}
