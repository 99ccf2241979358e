//! The generations before the newest one that a worker was a member of and that may still train, as the operator knows it: an
//! annotation on the pod, for the operator alone. With all pods' annotations it knows which processes would have to take part
//! in a generation that it does not reach.

/// A generation of which a worker was a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Earlier {
    /// Its number.
    pub generation: u64,
    /// Workers that it needs.
    pub nodes: u32,
}

/// Most generations of one worker. More than so many that never formed, one after the other, are forgotten from the oldest on.
pub const MAX_EARLIER: usize = 16;

/// The annotation's text, such as `3/2,4/3`: generation and nodes.
#[must_use]
pub fn to_text(all: &[Earlier]) -> String {
    let all = all.iter();
    let texts = all.map(|it| format!("{}/{}", it.generation, it.nodes));
    texts.collect::<Vec<_>>().join(",")
}

/// Reads the annotation's text. What is no generation is left out.
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
    fn generations_read_back_as_they_were_written() {
        let all = [(3, 2), (4, 3)].map(|(generation, nodes)| Earlier { generation, nodes });
        assert_eq!(to_text(&all), "3/2,4/3");
        assert_eq!(parse(&to_text(&all)), all);
        assert_eq!(parse(""), []);
        assert_eq!(parse("x,3/2,4/"), all[..1]);
    }
}
