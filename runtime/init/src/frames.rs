//! Frames between the agent and init: kind u8, id u32, length u32 (big endian), then the payload.

/// Largest payload that is accepted; a longer one is a protocol error.
pub const MAX_PAYLOAD: usize = 64 << 20;
const HEADER: usize = 9;

// agent to init
pub const START: u8 = 1;
pub const EXEC: u8 = 2;
pub const KILL: u8 = 3;
pub const STOP: u8 = 4;
pub const ARM: u8 = 5;
/// The agent passes calls on; one of the version before never says so.
pub const FORWARDS: u8 = 6;
/// To a call, by its id: u32 length, JSON with the status, then the body.
pub const ANSWER: u8 = 7;
// init to agent
pub const READY: u8 = 16;
pub const STDOUT: u8 = 17;
pub const STDERR: u8 = 18;
pub const EXIT: u8 = 19;
pub const HEARTBEAT: u8 = 20;
pub const END: u8 = 21;
pub const NOTE: u8 = 22;
/// A call of a program: u32 length, JSON with method and path, then the body.
pub const CALL: u8 = 23;

/// One message. `id` names the command that it is about; 0 is the main command.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub id: u32,
    pub payload: Vec<u8>,
}

/// Append a frame to a send buffer.
pub fn put(buffer: &mut Vec<u8>, kind: u8, id: u32, payload: &[u8]) {
    buffer.push(kind);
    buffer.extend_from_slice(&id.to_be_bytes());
    buffer.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    buffer.extend_from_slice(payload);
}

/// Take the first whole frame off a receive buffer. Err: the peer broke the protocol.
pub fn take(buffer: &mut Vec<u8>) -> Result<Option<Frame>, String> {
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let id = u32::from_be_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]);
    let length = u32::from_be_bytes([buffer[5], buffer[6], buffer[7], buffer[8]]) as usize;
    if length > MAX_PAYLOAD {
        return Err(format!(
            "payload of {length} bytes, at most {MAX_PAYLOAD} allowed"
        ));
    }
    if buffer.len() < HEADER + length {
        return Ok(None);
    }
    let kind = buffer[0];
    let payload = buffer[HEADER..HEADER + length].to_vec();
    buffer.drain(..HEADER + length);
    Ok(Some(Frame { kind, id, payload }))
}

/// Join what `split_order` splits.
pub fn join_order(value: &serde_json::Value, body: &[u8]) -> Vec<u8> {
    let text = value.to_string();
    let mut payload = (text.len() as u32).to_be_bytes().to_vec();
    payload.extend_from_slice(text.as_bytes());
    payload.extend_from_slice(body);
    payload
}

/// Split the payload of START, EXEC and ANSWER: u32 length, JSON, then the bytes for standard input.
pub fn split_order(payload: &[u8]) -> Result<(serde_json::Value, Vec<u8>), String> {
    let head: [u8; 4] = payload
        .get(..4)
        .and_then(|b| b.try_into().ok())
        .ok_or("order without a length")?;
    let length = u32::from_be_bytes(head) as usize;
    let text = payload.get(4..4 + length).ok_or("order is cut short")?;
    let value = serde_json::from_slice(text).map_err(|e| format!("order is not JSON: {e}"))?;
    Ok((value, payload[4 + length..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let mut wire = Vec::new();
        put(&mut wire, STDOUT, 7, b"a\0b");
        put(&mut wire, EXIT, 7, b"");
        let mut buffer = Vec::new();
        let mut got = Vec::new();
        for byte in wire {
            buffer.push(byte);
            while let Some(frame) = take(&mut buffer).unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got.len(), 2);
        assert_eq!(
            got[0],
            Frame {
                kind: STDOUT,
                id: 7,
                payload: b"a\0b".to_vec()
            }
        );
        assert_eq!(got[1].kind, EXIT);
        assert!(buffer.is_empty());
    }

    #[test]
    fn oversized_frame_is_refused() {
        let mut buffer = vec![STDOUT, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff];
        assert!(take(&mut buffer).is_err());
    }

    #[test]
    fn order_splits_json_and_stdin() {
        let json = br#"{"command":["true"]}"#;
        let mut payload = (json.len() as u32).to_be_bytes().to_vec();
        payload.extend_from_slice(json);
        payload.extend_from_slice(b"\x00raw");
        let (value, stdin) = split_order(&payload).unwrap();
        assert_eq!(value["command"][0], "true");
        assert_eq!(stdin, b"\x00raw");
        assert!(split_order(&payload[..6]).is_err());
        assert_eq!(join_order(&value, &stdin), payload);
    }
}
