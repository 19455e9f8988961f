//! The heartbeat endpoint inside the sandbox: POST /heartbeat on 127.0.0.1:8080.
use crate::sys;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

const MAX_REQUEST: usize = 64 << 10;
const MAX_CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);

/// What this sandbox's heartbeats must say.
#[derive(Clone, Default)]
pub struct Expected {
    pub task_id: String,
    pub role: String,
    pub gpu_ids: String,
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    answer: Vec<u8>,
    until: Instant,
}

/// A tiny HTTP server: one request a connection, no keep-alive.
pub struct Endpoint {
    listener: TcpListener,
    connections: Vec<Connection>,
    pub expected: Expected,
}

/// Check a heartbeat's JSON; the error names the field, its value and what is allowed.
pub fn validate(body: &[u8], expected: &Expected) -> Result<Value, String> {
    let value: Value =
        serde_json::from_slice(body).map_err(|e| format!("body is not JSON: {e}"))?;
    if !value.is_object() {
        return Err("body must be a JSON object with task_id, role and gpu_ids".to_owned());
    }
    for (field, wanted) in [("task_id", &expected.task_id), ("role", &expected.role)] {
        match value[field].as_str() {
            None => return Err(format!("{field}: {} is not text", value[field])),
            Some(got) if got != wanted => {
                return Err(format!(
                    "{field}: {got:?} is not this sandbox's, {wanted:?}"
                ));
            }
            Some(_) => {}
        }
    }
    let gpus = value["gpu_ids"].as_str().ok_or_else(|| {
        format!(
            "gpu_ids: {} is not a comma-separated list",
            value["gpu_ids"]
        )
    })?;
    let known: Vec<&str> = expected.gpu_ids.split(',').collect();
    for gpu in gpus.split(',').map(str::trim).filter(|g| !g.is_empty()) {
        // an index counts from 0 inside the sandbox; a device may also be named in full
        let by_index = gpu
            .parse::<usize>()
            .is_ok_and(|i| i < known.len() && !known[0].is_empty());
        if !by_index && !known.contains(&gpu) {
            return Err(format!(
                "gpu_ids: {gpu:?} is not one of {:?}",
                expected.gpu_ids
            ));
        }
    }
    Ok(value)
}

fn answer(status: &str, body: &Value) -> Vec<u8> {
    let text = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
    .into_bytes()
}

/// Method, path and body.
type Request<'a> = (&'a str, &'a str, &'a [u8]);

/// Split a whole request into (method, path, body). None: more bytes are needed.
fn request(received: &[u8]) -> Result<Option<Request<'_>>, &'static str> {
    let Some(end) = received.windows(4).position(|w| w == b"\r\n\r\n") else {
        let full = received.len() >= MAX_REQUEST;
        return if full {
            Err("413 Content Too Large")
        } else {
            Ok(None)
        };
    };
    let head = std::str::from_utf8(&received[..end]).map_err(|_| "400 Bad Request")?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (
        first.next().unwrap_or_default(),
        first.next().unwrap_or_default(),
    );
    let mut length = 0;
    for (name, value) in lines.filter_map(|l| l.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value
                .trim()
                .parse::<usize>()
                .map_err(|_| "400 Bad Request")?;
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("411 Length Required");
        }
    }
    if length > MAX_REQUEST {
        return Err("413 Content Too Large");
    }
    let body = &received[end + 4..];
    Ok((body.len() >= length).then(|| (method, path, &body[..length])))
}

impl Endpoint {
    /// Listen on the loopback interface of the sandbox's own network namespace.
    pub fn open(expected: Expected) -> io::Result<Endpoint> {
        let listener = TcpListener::bind(("127.0.0.1", 8080))?;
        listener.set_nonblocking(true)?;
        Ok(Endpoint {
            listener,
            connections: Vec::new(),
            expected,
        })
    }

    /// Descriptors to poll, with the events to poll for.
    pub fn descriptors(&self) -> Vec<(RawFd, libc::c_short)> {
        let mut list = vec![(self.listener.as_raw_fd(), libc::POLLIN)];
        for c in &self.connections {
            let events = if c.answer.is_empty() {
                libc::POLLIN
            } else {
                libc::POLLOUT
            };
            list.push((c.stream.as_raw_fd(), events));
        }
        list
    }

    /// The next moment at which a slow connection is dropped.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.connections.iter().map(|c| c.until).min()
    }

    /// Do what can be done without waiting; returns the valid heartbeats that came in.
    pub fn serve(&mut self) -> Vec<Value> {
        while self.connections.len() < MAX_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            if stream.set_nonblocking(true).is_ok() {
                let until = Instant::now() + PATIENCE;
                let (received, answer) = (Vec::new(), Vec::new());
                self.connections.push(Connection {
                    stream,
                    received,
                    answer,
                    until,
                });
            }
        }
        let mut beats = Vec::new();
        let expected = &self.expected;
        self.connections
            .retain_mut(|c| c.until > Instant::now() && c.advance(expected, &mut beats));
        beats
    }
}

impl Connection {
    /// Read, answer, write; false when the connection is done.
    fn advance(&mut self, expected: &Expected, beats: &mut Vec<Value>) -> bool {
        if self.answer.is_empty() {
            let mut buffer = [0; 8192];
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(e) if sys::later(&e) => return true,
                Err(_) => return false,
            }
            self.answer = match request(&self.received) {
                Ok(None) => return true,
                Err(status) => answer(status, &json!({"error": status})),
                Ok(Some(("POST", "/heartbeat", body))) => match validate(body, expected) {
                    Ok(beat) => {
                        beats.push(beat);
                        answer("200 OK", &json!({"ok": true}))
                    }
                    Err(why) => answer("400 Bad Request", &json!({"error": why})),
                },
                Ok(Some((_, "/heartbeat", _))) => answer(
                    "405 Method Not Allowed",
                    &json!({"error": "only POST is allowed"}),
                ),
                Ok(Some(_)) => answer(
                    "404 Not Found",
                    &json!({"error": "the only path is /heartbeat"}),
                ),
            };
        }
        match self.stream.write(&self.answer) {
            Ok(n) => {
                self.answer.drain(..n);
                !self.answer.is_empty()
            }
            Err(e) => sys::later(&e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected {
            task_id: "t".into(),
            role: "worker".into(),
            gpu_ids: "GPU-a,GPU-b".into(),
        }
    }

    #[test]
    fn valid_heartbeats() {
        for gpus in ["", "0", "0,1", "GPU-b"] {
            let body = json!({"task_id": "t", "role": "worker", "gpu_ids": gpus}).to_string();
            assert!(validate(body.as_bytes(), &expected()).is_ok(), "{gpus}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        for (body, field) in [
            (json!({"role": "worker", "gpu_ids": ""}), "task_id"),
            (
                json!({"task_id": "x", "role": "worker", "gpu_ids": ""}),
                "task_id",
            ),
            (json!({"task_id": "t", "role": 3, "gpu_ids": ""}), "role"),
            (json!({"task_id": "t", "role": "worker"}), "gpu_ids"),
            (
                json!({"task_id": "t", "role": "worker", "gpu_ids": "2"}),
                "gpu_ids",
            ),
        ] {
            let error = validate(body.to_string().as_bytes(), &expected()).unwrap_err();
            assert!(error.starts_with(field), "{error}");
        }
        assert!(validate(b"nope", &expected()).is_err());
    }

    #[test]
    fn requests_are_cut_at_their_length() {
        let whole = b"POST /heartbeat HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(request(&whole[..30]).unwrap(), None);
        assert_eq!(request(&whole[..whole.len() - 1]).unwrap(), None);
        let (method, path, body) = request(whole).unwrap().unwrap();
        assert_eq!((method, path, body), ("POST", "/heartbeat", &b"{}"[..]));
        assert!(request(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").is_err());
    }
}
