//! What the agent orders, and what it is told: start, exec, stop, heartbeats, the end.
use super::{Init, MAIN, MOUNT_POLL, Phase, Waiting};
use crate::child::Order;
use crate::command::Command;
use crate::frames::{self, Frame};
use crate::sys;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

impl Init {
    /// Pass a heartbeat on; the newest is kept while no agent listens.
    pub(super) fn beat(&mut self, body: &Value, source: &str) {
        self.registered = true;
        let text = json!({"body": body, "at": sys::utc_millis(), "source": source}).to_string();
        if self.link.connection.is_some() {
            self.link.send(frames::HEARTBEAT, MAIN, text.as_bytes());
        } else {
            self.untold = Some(text.into_bytes());
        }
    }

    pub(super) fn beat_self(&mut self) {
        let expected = self
            .endpoint
            .as_ref()
            .map(|e| e.expected.clone())
            .unwrap_or_default();
        let body = json!({
            "task_id": expected.task_id, "role": expected.role, "gpu_ids": expected.gpu_ids,
        });
        self.beat(&body, "init");
    }

    /// Tell a new agent where things stand.
    pub(super) fn greet(&mut self) {
        let phase = match &self.phase {
            Phase::Idle => "idle",
            Phase::Waiting(_) => "waiting",
            Phase::Running => "running",
            Phase::Ended(_) => "ended",
        };
        let text = json!({"version": 2, "phase": phase, "registered": self.registered}).to_string();
        self.armed = false;
        self.link.send(frames::READY, MAIN, text.as_bytes());
        if let Some(beat) = self.untold.take() {
            self.link.send(frames::HEARTBEAT, MAIN, &beat);
        }
        if let Phase::Ended(end) = &self.phase {
            let text = end.to_string();
            self.link.send(frames::END, MAIN, text.as_bytes());
        }
    }

    pub(super) fn obey(&mut self, frame: Frame) {
        match frame.kind {
            frames::START => match frames::split_order(&frame.payload) {
                Ok((value, input)) => self.accept_start(value, input),
                Err(why) => self.finish_unstarted("start-failed", &why),
            },
            frames::EXEC => match frames::split_order(&frame.payload) {
                Ok((value, input)) => self.exec(frame.id, &value, input),
                Err(why) => self.refuse(frame.id, &why),
            },
            frames::KILL => {
                for command in self.commands.iter_mut().filter(|c| c.id == frame.id) {
                    command.kill(&self.cgroups, "killed");
                }
            }
            frames::STOP => {
                let value: Value = serde_json::from_slice(&frame.payload).unwrap_or_default();
                let grace = value["grace"].as_f64().unwrap_or(0.0).clamp(0.0, 86_400.0);
                self.stop(Duration::from_secs_f64(grace));
            }
            frames::ARM => {
                let seen = |at: usize| {
                    let bytes = frame.payload.get(at..at + 8)?;
                    bytes.try_into().ok().map(u64::from_be_bytes)
                };
                // news that came between the reader's look and its question are told at once
                let current = (Some(self.rings[0].total()), Some(self.rings[1].total()));
                self.armed = (seen(0), seen(8)) == current;
                if !self.armed {
                    self.link.send(frames::NOTE, MAIN, b"");
                }
            }
            frames::FORWARDS => {
                if let Some(endpoint) = self.endpoint.as_mut() {
                    endpoint.forwards = true;
                }
            }
            frames::ANSWER => {
                if let Ok((value, body)) = frames::split_order(&frame.payload)
                    && let Some(endpoint) = self.endpoint.as_mut()
                {
                    let status = value["status"].as_u64().unwrap_or(503);
                    endpoint.answered(frame.id, status, &String::from_utf8_lossy(&body));
                }
            }
            other => eprintln!("dsec-init: unknown frame kind {other}"),
        }
    }

    pub(super) fn accept_start(&mut self, value: Value, input: Vec<u8>) {
        if !matches!(self.phase, Phase::Idle) {
            return; // a repeat: the order is already in hand
        }
        self.hard_cap = value["hardCap"].as_u64().unwrap_or(u64::MAX);
        let tries_left = value["mountTries"].as_u64().unwrap_or(30);
        self.phase = Phase::Waiting(Waiting {
            value,
            input,
            tries_left,
            next_try: Instant::now(),
        });
        self.try_start();
    }

    /// Start the main command if its directories are there; look again in a second otherwise.
    pub(super) fn try_start(&mut self) {
        let Phase::Waiting(waiting) = &mut self.phase else {
            return;
        };
        let wanted = waiting.value["waitPaths"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let missing: Vec<&str> = wanted
            .iter()
            .filter_map(Value::as_str)
            .filter(|p| !Path::new(p).is_dir())
            .collect();
        if !missing.is_empty() {
            if waiting.tries_left == 0 {
                let message = format!("not mounted in time: {}", missing.join(", "));
                return self.finish_unstarted("mount-timeout", &message);
            }
            waiting.tries_left -= 1;
            waiting.next_try = Instant::now() + MOUNT_POLL;
            return;
        }
        let Phase::Waiting(waiting) = std::mem::replace(&mut self.phase, Phase::Running) else {
            return;
        };
        if waiting.value["register"].as_bool().unwrap_or(false) {
            let seconds = waiting.value["interval"]
                .as_f64()
                .unwrap_or(15.0)
                .clamp(0.05, 86_400.0);
            let interval = Duration::from_secs_f64(seconds);
            self.beat_self();
            self.own_beat = Some((Instant::now() + interval, interval));
        }
        if let Err(why) = self.launch(MAIN, "main", &waiting.value, waiting.input) {
            self.finish_unstarted("start-failed", &why);
        }
    }

    pub(super) fn launch(
        &mut self,
        id: u32,
        leaf: &str,
        value: &Value,
        input: Vec<u8>,
    ) -> Result<(), String> {
        let order = Order::parse(value)?;
        let leaf = self
            .cgroups
            .leaf(leaf)
            .map_err(|e| format!("no cgroup for the command: {e}"))?;
        let started = order.spawn(leaf.as_ref(), &self.cgroups.join);
        let started = started.map_err(|e| format!("cannot start a process: {e}"))?;
        self.commands
            .push(Command::new(id, order, leaf, started, input));
        Ok(())
    }

    pub(super) fn exec(&mut self, id: u32, value: &Value, input: Vec<u8>) {
        if let Phase::Ended(_) = self.phase {
            return self.refuse(id, "the sandbox has ended");
        }
        if let Err(why) = self.launch(id, &format!("e{id}"), value, input) {
            return self.refuse(id, &why);
        }
        if let Some(command) = self.commands.last_mut() {
            command.allowance = value["outputCap"].as_u64().unwrap_or(u64::MAX);
            let timeout = value["timeout"].as_f64().filter(|t| *t >= 0.0 && *t < 1e9);
            command.deadline = timeout.map(|t| Instant::now() + Duration::from_secs_f64(t));
        }
    }

    pub(super) fn refuse(&mut self, id: u32, why: &str) {
        let text = json!({"reason": "start-failed", "message": why}).to_string();
        self.link.send(frames::EXIT, id, text.as_bytes());
    }

    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop_requested = true;
        match self.phase {
            Phase::Idle | Phase::Waiting(_) => {
                self.finish_unstarted("", "stopped before its start")
            }
            Phase::Running => {
                for command in self.commands.iter().filter(|c| c.id == MAIN && c.alive()) {
                    // SAFETY: the session of our unreaped child.
                    unsafe { libc::kill(-command.pid, libc::SIGTERM) };
                }
                let at = Instant::now() + grace;
                // a repeated stop may shorten the grace, never lengthen it
                self.kill_all_at = Some(self.kill_all_at.map_or(at, |old| old.min(at)));
            }
            Phase::Ended(_) => {}
        }
    }

    pub(super) fn finish_unstarted(&mut self, reason: &str, message: &str) {
        let end = json!({
            "reason": reason, "message": message, "stopRequested": self.stop_requested,
        });
        self.finish(end);
    }

    /// The sandbox has ended: keep how on disk, tell the agent.
    pub(super) fn finish(&mut self, mut end: Value) {
        if matches!(self.phase, Phase::Ended(_)) {
            return;
        }
        end["at"] = json!(sys::utc_millis());
        end["stdoutBytes"] = json!(self.rings[0].total());
        end["stderrBytes"] = json!(self.rings[1].total());
        let text = end.to_string();
        // read by an agent that comes after init is gone; a full disk only loses this copy
        let _lost = sys::write(self.end_file, text.as_bytes());
        self.link.send(frames::END, MAIN, text.as_bytes());
        self.own_beat = None;
        self.kill_all_at = None;
        self.phase = Phase::Ended(end);
    }
}
