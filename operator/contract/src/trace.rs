//! What the agent asks a process for when somebody wants a trace: a file of the run directory
//! ([`crate::paths::rank_trace_request`]).
//!
//! The process removes the file when it has written the trace, and when there will be none. So there is one request at a
//! time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A trace of the next steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRequest {
    /// How many training steps, at most [`Self::MOST_STEPS`].
    pub num_steps: u32,
    /// File for the trace, on a disk. The process puts it there by rename.
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
    fn a_request_reads_back_as_itself() {
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
