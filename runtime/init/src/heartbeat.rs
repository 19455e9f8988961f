//! The endpoint inside the sandbox, 127.0.0.1:8080: POST /heartbeat, and calls that go further.
//!
//! Paths below /v1/ are passed to the agent, which asks a gateway in the sandbox's name. They wait in
//! their connections; heartbeats are answered here and wait for nobody.
use crate::http::{MAX_REQUEST, answer, answer_text, refusal, request, status_line};
use crate::sys;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

const MAX_CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(5);
/// Calls on their way at once; beyond it a program is told to wait, so that heartbeats have room.
const MAX_CALLS: usize = 8;
/// A take may wait 20 s for work; then comes the way there and back.
const CALL_PATIENCE: Duration = Duration::from_secs(60);
/// Who marks a safe point waits until its files are copied, and may be frozen meanwhile.
const MARK_PATIENCE: Duration = Duration::from_secs(900);
const MARK: &str = "/v1/snapshot/mark";

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
    /// The number of its call, while that is on its way.
    call: Option<u32>,
}

/// A call that the agent is to make.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    pub id: u32,
    pub method: String,
    pub path: String,
    pub body: Vec<u8>,
}

/// What came in: valid heartbeats, and calls to pass on.
#[derive(Default)]
pub struct Served {
    pub beats: Vec<Value>,
    pub calls: Vec<Call>,
}

/// A tiny HTTP server: one request a connection, no keep-alive.
pub struct Endpoint {
    listener: TcpListener,
    connections: Vec<Connection>,
    last_call: u32,
    /// The agent that is connected passes calls on.
    pub forwards: bool,
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

impl Endpoint {
    /// Listen on the loopback interface of the sandbox's own network namespace.
    pub fn open(expected: Expected) -> io::Result<Endpoint> {
        let listener = TcpListener::bind(("127.0.0.1", 8080))?;
        listener.set_nonblocking(true)?;
        Ok(Endpoint {
            listener,
            connections: Vec::new(),
            last_call: 0,
            forwards: false,
            expected,
        })
    }

    /// Descriptors to poll, with the events to poll for.
    pub fn descriptors(&self) -> Vec<(RawFd, libc::c_short)> {
        let mut list = vec![(self.listener.as_raw_fd(), libc::POLLIN)];
        for c in &self.connections {
            // of a program that waits for an answer only errors are news, which poll always tells
            let events = match (c.answer.is_empty(), c.call) {
                (true, None) => libc::POLLIN,
                (true, Some(_)) => 0,
                (false, _) => libc::POLLOUT,
            };
            list.push((c.stream.as_raw_fd(), events));
        }
        list
    }

    /// The next moment at which a slow connection is dropped.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.connections.iter().map(|c| c.until).min()
    }

    /// Do what can be done without waiting; returns what came in.
    pub fn serve(&mut self) -> Served {
        while self.connections.len() < MAX_CONNECTIONS {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            if stream.set_nonblocking(true).is_ok() {
                self.connections.push(Connection {
                    stream,
                    received: Vec::new(),
                    answer: Vec::new(),
                    until: Instant::now() + PATIENCE,
                    call: None,
                });
            }
        }
        let mut served = Served::default();
        let mut under_way = self.connections.iter().filter(|c| c.call.is_some()).count();
        let now = Instant::now();
        for connection in &mut self.connections {
            if connection.call.is_some() && connection.until <= now && connection.answer.is_empty()
            {
                connection.reply(refusal(&status_line(503), "away", "no answer in time"));
            }
            if !connection.read() {
                connection.until = now;
                continue;
            }
            if connection.call.is_some() || !connection.answer.is_empty() {
                continue;
            }
            let (reply, call) = match request(&connection.received) {
                Ok(None) => continue,
                Err(status) => (answer(status, &json!({"error": status})), None),
                Ok(Some(("POST", "/heartbeat", body))) => match validate(body, &self.expected) {
                    Ok(beat) => {
                        served.beats.push(beat);
                        (answer("200 OK", &json!({"ok": true})), None)
                    }
                    Err(why) => (answer("400 Bad Request", &json!({"error": why})), None),
                },
                Ok(Some((_, "/heartbeat", _))) => (
                    answer(
                        "405 Method Not Allowed",
                        &json!({"error": "only POST is allowed"}),
                    ),
                    None,
                ),
                Ok(Some((method, path, body))) if path.starts_with("/v1/") => {
                    match refused(self.forwards, under_way) {
                        Some(reply) => (reply, None),
                        None => {
                            self.last_call = self.last_call.wrapping_add(1);
                            under_way += 1;
                            let call = Call {
                                id: self.last_call,
                                method: method.to_owned(),
                                path: path.to_owned(),
                                body: body.to_vec(),
                            };
                            (Vec::new(), Some(call))
                        }
                    }
                }
                Ok(Some(_)) => (
                    answer(
                        "404 Not Found",
                        &json!({"error": "the paths are /heartbeat and what is below /v1/"}),
                    ),
                    None,
                ),
            };
            match call {
                Some(call) => {
                    connection.call = Some(call.id);
                    connection.until = now + patience(&call.path);
                    connection.received = Vec::new();
                    served.calls.push(call);
                }
                None => connection.reply(reply),
            }
        }
        self.connections
            .retain_mut(|c| c.until > Instant::now() && c.write());
        served
    }

    /// Hand the agent's answer to the program that asked; one that has left is no error.
    pub fn answered(&mut self, id: u32, status: u64, text: &str) {
        for connection in self.connections.iter_mut().filter(|c| c.call == Some(id)) {
            connection.reply(answer_text(&status_line(status), text));
        }
        self.connections
            .retain_mut(|c| c.until > Instant::now() && c.write());
    }

    /// The agent is gone, and with it the answers to what it was asked.
    pub fn forsake(&mut self) {
        self.forwards = false;
        for connection in self.connections.iter_mut().filter(|c| c.call.is_some()) {
            connection.reply(refusal(
                &status_line(503),
                "away",
                "the agent went away; the outcome is not known, repeat the call",
            ));
        }
        self.connections
            .retain_mut(|c| c.until > Instant::now() && c.write());
    }
}

/// How long the agent may take to answer a call.
fn patience(path: &str) -> Duration {
    if path == MARK {
        MARK_PATIENCE
    } else {
        CALL_PATIENCE
    }
}

/// Why a call cannot be passed on now, as an answer; None: it can.
fn refused(forwards: bool, under_way: usize) -> Option<Vec<u8>> {
    if !forwards {
        let why = "the agent of this node passes no calls on";
        return Some(refusal("501 Not Implemented", "not-implemented", why));
    }
    (under_way >= MAX_CALLS).then(|| {
        let why = format!("{MAX_CALLS} calls are on their way already");
        refusal(&status_line(429), "busy", &why)
    })
}

impl Connection {
    /// Queue an answer; what is slow to read it is dropped after a while.
    fn reply(&mut self, bytes: Vec<u8>) {
        self.answer = bytes;
        self.call = None;
        self.until = Instant::now() + PATIENCE;
    }

    /// Read what is there; false when the program has left. One that waits may have closed its side.
    fn read(&mut self) -> bool {
        if !self.answer.is_empty() {
            return true;
        }
        let mut buffer = [0; 8192];
        let mut fresh = false;
        while self.received.len() <= MAX_REQUEST {
            match self.stream.read(&mut buffer) {
                Ok(0) => return fresh || self.call.is_some(),
                // one request a connection: what follows it is dropped
                Ok(_) if self.call.is_some() => {}
                Ok(n) => {
                    fresh = true;
                    self.received.extend_from_slice(&buffer[..n]);
                }
                Err(e) => return sys::later(&e),
            }
        }
        true
    }

    /// Write what the program takes; false when the connection is done.
    fn write(&mut self) -> bool {
        if self.answer.is_empty() {
            return true;
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
    fn calls_are_refused_where_nobody_passes_them_on() {
        let text = |reply: Option<Vec<u8>>| String::from_utf8(reply.unwrap()).unwrap();
        assert!(text(refused(false, 0)).starts_with("HTTP/1.1 501 "));
        assert!(text(refused(true, MAX_CALLS)).starts_with("HTTP/1.1 429 "));
        assert!(refused(true, MAX_CALLS - 1).is_none());
    }

    #[test]
    fn who_marks_a_safe_point_may_wait_longer() {
        assert_eq!(patience("/v1/snapshot/mark"), MARK_PATIENCE);
        assert_eq!(patience("/v1/snapshot/notice"), CALL_PATIENCE);
        assert_eq!(patience("/v1/queue/traj/take"), CALL_PATIENCE);
    }

    fn endpoint() -> (Endpoint, std::net::SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Endpoint {
            listener,
            connections: Vec::new(),
            last_call: 0,
            forwards: true,
            expected: expected(),
        };
        (endpoint, address)
    }

    fn ask(address: std::net::SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    fn until_served(endpoint: &mut Endpoint) -> Served {
        for _ in 0..500 {
            let served = endpoint.serve();
            if !served.calls.is_empty() || !served.beats.is_empty() {
                return served;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("nothing came in");
    }

    fn text_of(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_call_waits_and_heartbeats_do_not() {
        let (mut endpoint, address) = endpoint();
        let body = "x".repeat(100 << 10);
        let asking = ask(address, "POST", "/v1/queue/traj/put", &body);
        let served = until_served(&mut endpoint);
        assert_eq!(served.calls.len(), 1);
        let call = &served.calls[0];
        let head = (call.method.as_str(), call.path.as_str());
        assert_eq!(head, ("POST", "/v1/queue/traj/put"));
        assert_eq!(call.body.len(), body.len());
        let beat = json!({"task_id": "t", "role": "worker", "gpu_ids": ""}).to_string();
        let beating = ask(address, "POST", "/heartbeat", &beat);
        assert_eq!(until_served(&mut endpoint).beats.len(), 1);
        assert!(text_of(beating).starts_with("HTTP/1.1 200 OK"));
        endpoint.answered(call.id, 409, "{\"code\":\"fenced\"}");
        let text = text_of(asking);
        assert!(text.starts_with("HTTP/1.1 409 Conflict"), "{text}");
        assert!(text.ends_with("{\"code\":\"fenced\"}"));
    }

    #[test]
    fn an_agent_that_goes_leaves_no_program_waiting() {
        let (mut endpoint, address) = endpoint();
        let asking = ask(address, "GET", "/v1/queue/traj", "");
        let id = until_served(&mut endpoint).calls[0].id;
        endpoint.forsake();
        assert!(text_of(asking).starts_with("HTTP/1.1 503 "));
        endpoint.answered(id, 200, "{}");
        let late = ask(address, "GET", "/v1/queue/traj", "");
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..3 {
            endpoint.serve();
        }
        assert!(text_of(late).starts_with("HTTP/1.1 501 "));
    }
}
