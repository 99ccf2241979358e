//! Earlier generations in which a worker was a member and that may still train, as far as the
//! operator knows: an annotation of the pod, which only the operator reads. From the annotations of
//! all pods it knows which processes may still be in a generation that did not receive the newest
//! membership.

/// A generation in which a worker was a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Earlier {
    /// Number of the generation.
    pub generation: u64,
    /// Number of workers in it. 0: the container that was a member has ended, and the pod may keep
    /// a copy of the generation's state.
    pub nodes: u32,
}

/// Most generations of one worker. If more than these in a row never formed,
/// the oldest are dropped.
pub const MAX_EARLIER: usize = 16;

/// The annotation's text, such as `3/2,4/3`: generation and nodes.
#[must_use]
pub fn to_text(all: &[Earlier]) -> String {
    let all = all.iter();
    let texts = all.map(|it| format!("{}/{}", it.generation, it.nodes));
    texts.collect::<Vec<_>>().join(",")
}

/// Reads the annotation's text. Parts that are not generations are left out.
#[must_use]
pub fn parse(text: &str) -> Vec<Earlier> {
    let parts = text.split(',').filter_map(|part| {
        let (generation, nodes) = part.trim().split_once('/')?;
        Some(Earlier {
            generation: generation.parse().ok()?,
            nodes: nodes.parse().ok()?,
        })
    });
    parts.take(MAX_EARLIER).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_generations_round_trip() {
        let all = [(3, 2), (4, 3)].map(|(generation, nodes)| Earlier { generation, nodes });
        assert_eq!(to_text(&all), "3/2,4/3");
        assert_eq!(parse(&to_text(&all)), all);
        assert_eq!(parse(""), []);
        assert_eq!(parse("x,3/2,4/"), all[..1]);
    }
}
