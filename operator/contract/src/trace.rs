//! The agent's request for a trace of a process: a file of the run directory
//! ([`crate::paths::rank_trace_request`]).
//!
//! The process removes the file when it has written the trace, or when it will not write one. So
//! there is one request at a time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A request for a trace of the next steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRequest {
    /// Number of training steps, at most [`Self::MOST_STEPS`].
    pub num_steps: u32,
    /// File for the trace, on a disk. The process writes it by rename.
    pub result: PathBuf,
}

impl TraceRequest {
    /// Most steps of a trace, which slows them down.
    pub const MOST_STEPS: u32 = 20;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_request_round_trips() {
        let request = TraceRequest {
            num_steps: 5,
            result: PathBuf::from("/tmp/trace.json"),
        };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"numSteps":5,"result":"/tmp/trace.json"}"#);
        let read: TraceRequest = serde_json::from_str(&text).unwrap();
        assert_eq!(read, request);
    }
}
