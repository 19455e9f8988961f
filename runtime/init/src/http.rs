//! HTTP as far as dsec-init speaks it: one request a connection, whole bodies, no keep-alive.
use serde_json::Value;

/// Of one request, head and body; init is not bound by the sandbox's own memory limit.
pub const MAX_REQUEST: usize = 320 << 10;

/// An answer with a JSON body.
pub fn answer(status: &str, body: &Value) -> Vec<u8> {
    answer_text(status, &body.to_string())
}

/// An answer whose body is JSON text already.
pub fn answer_text(status: &str, text: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
    .into_bytes()
}

/// Method, path and body.
pub type Request<'a> = (&'a str, &'a str, &'a [u8]);

/// Split a whole request into (method, path, body). None: more bytes are needed.
pub fn request(received: &[u8]) -> Result<Option<Request<'_>>, &'static str> {
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

/// The status line's words of an answer from further away.
pub fn status_line(status: u64) -> String {
    let words = match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Answer",
    };
    format!("{status} {words}")
}

/// An error as all of dsec's look.
pub fn refusal(status: &str, code: &str, message: &str) -> Vec<u8> {
    answer(
        status,
        &serde_json::json!({"code": code, "message": message}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_cut_at_their_length() {
        let whole = b"POST /heartbeat HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(request(&whole[..30]).unwrap(), None);
        assert_eq!(request(&whole[..whole.len() - 1]).unwrap(), None);
        let (method, path, body) = request(whole).unwrap().unwrap();
        assert_eq!((method, path, body), ("POST", "/heartbeat", &b"{}"[..]));
        assert!(request(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").is_err());
    }

    #[test]
    fn answers_tell_their_length() {
        let text = String::from_utf8(refusal(&status_line(503), "away", "later")).unwrap();
        assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        let body = text.split("\r\n\r\n").nth(1).unwrap();
        assert!(text.contains(&format!("Content-Length: {}\r\n", body.len())));
    }
}
