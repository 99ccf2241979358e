//! Which rank has the state that a new generation continues with.

/// Where the state that a rank holds comes from, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The rank was cut off while it received another's state over its own.
    Torn,
    /// Initial weights.
    Fresh,
    /// A checkpoint that the rank can read.
    Loaded,
    /// Held since it was a member of a world.
    Live,
}

impl Origin {
    const ALL: [Self; 4] = [Self::Torn, Self::Fresh, Self::Loaded, Self::Live];

    /// A number for a collective.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The origin of a number. A number that no origin has is taken for [`Self::Torn`], with which nothing continues.
    #[must_use]
    pub fn from_code(code: u64) -> Self {
        let known = Self::ALL.into_iter().find(|origin| origin.code() == code);
        known.unwrap_or(Self::Torn)
    }
}

/// What a rank says of its state. Greater is better, field by field:
///
/// A state that a process kept beats any from a disk, because a world of one step more than the last
/// checkpoint is still there. Among equals the generation decides before the step: what a superseded
/// generation committed after it was left behind is not gone on with, however much it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Where it comes from.
    pub origin: Origin,
    /// The last generation that it was a member's state of; 0 before the first.
    pub generation: u64,
    /// Committed steps.
    pub step: u64,
}

impl Claim {
    /// Initial weights.
    pub const FRESH: Self = Self {
        origin: Origin::Fresh,
        generation: 0,
        step: 0,
    };

    /// What a rank says that was cut off while it received this state: nothing can continue with what it has, but it
    /// knows which state there was.
    #[must_use]
    pub const fn torn(self) -> Self {
        Self {
            origin: Origin::Torn,
            ..self
        }
    }

    const fn age(&self) -> (u64, u64) {
        (self.generation, self.step)
    }
}

/// Which rank has the state that a new generation continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSource {
    /// What the best state is.
    pub claim: Claim,
    /// Lowest rank that holds it.
    pub rank: usize,
    /// Whether it has to be sent: a rank lacks it, or it is on a disk, which one rank reads for all, or training
    /// has not begun, since no rank's initial weights are taken on trust.
    pub must_send: bool,
    /// A newer state that all ranks that had it are gone with. It is worth telling: its steps are done again.
    pub lost: Option<Lost>,
}

/// A state that every rank which had it is gone with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Generation that committed it.
    pub generation: u64,
    /// Its committed steps.
    pub step: u64,
}

impl StateSource {
    /// The greatest claim wins: a collective can succeed on one rank and fail on another, so some ranks may have
    /// committed a step that others have not.
    ///
    /// # Errors
    /// What is lost, if there is only initial weights to continue with although some rank was receiving a state of
    /// committed steps, or nothing at all. To begin at step 0 then would hide that the training's state is gone.
    pub fn of(claims: &[Claim]) -> Result<Self, Lost> {
        let torn = claims.iter().filter(|claim| claim.origin == Origin::Torn);
        let lost = torn.max().filter(|claim| claim.age() > (0, 0));
        let named = |claim: &Claim| Lost {
            generation: claim.generation,
            step: claim.step,
        };
        let best = claims.iter().filter(|claim| claim.origin != Origin::Torn);
        let best = match (best.max(), lost) {
            (Some(best), None) => *best,
            (Some(best), Some(_)) if best.origin != Origin::Fresh => *best,
            (_, lost) => return Err(named(lost.unwrap_or(&Claim::FRESH))),
        };
        let holds = |claim: &Claim| *claim == best;
        Ok(Self {
            claim: best,
            rank: claims.iter().position(holds).unwrap_or_default(),
            must_send: best.origin != Origin::Live || !claims.iter().all(holds),
            lost: lost.filter(|lost| lost.age() > best.age()).map(named),
        })
    }
}

#[cfg(test)]
mod tests;
