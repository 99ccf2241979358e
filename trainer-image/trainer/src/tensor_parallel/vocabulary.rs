//! Embeddings and losses over a vocabulary of which each process has a part.

use std::ops::Range;
use std::sync::Arc;

use tch::{Kind, TchError, Tensor};

use super::TensorParallel;

/// The tokens whose vectors and scores this process has.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    processes: Arc<TensorParallel>,
    tokens: Range<i64>,
    /// Number of all tokens.
    size: i64,
}

impl Vocabulary {
    /// The part of an embedding `[V, W]` at this place; `None`: this process has all of it.
    pub(crate) fn of(processes: &Arc<TensorParallel>, place: usize) -> Option<Self> {
        let part = processes.part(place)?;
        Some(Self {
            processes: Arc::clone(processes),
            tokens: part.range().clone(),
            size: part.whole_shape()[0],
        })
    }

    /// Indices of tokens in this process' part, and which tokens are outside of it. The latter have
    /// the index 0.
    fn local(&self, tokens: &Tensor) -> Result<(Tensor, Tensor), TchError> {
        let index = tokens.f_sub_scalar(self.tokens.start)?;
        let length = self.tokens.end - self.tokens.start;
        let outside = index.f_lt(0)?.f_logical_or(&index.f_ge(length)?)?;
        Ok((index.f_masked_fill(&outside, 0)?, outside))
    }

    /// The vectors of tokens, whose part here is `own` `[V / P, W]`. The lookup of `padding` has no
    /// gradient; -1: there is no such token.
    pub(crate) fn embed(
        &self,
        own: &Tensor,
        tokens: &Tensor,
        padding: i64,
    ) -> Result<Tensor, TchError> {
        let (index, outside) = self.local(tokens)?;
        let padding = match padding {
            token if self.tokens.contains(&token) => token - self.tokens.start,
            _ => -1,
        };
        let vectors = Tensor::f_embedding(own, &index, padding, false, false)?;
        let vectors = vectors.f_masked_fill(&outside.f_unsqueeze(-1)?, 0.0)?;
        self.processes.sum_values(&vectors)
    }

    /// The cross entropies `[N]` of scores `[N, V / P]` and targets `[N]`, with label smoothing; 0
    /// for targets that are `ignored`.
    ///
    /// With scores s less their maximum and Z = Σ exp(s), it is
    /// `log Z - (1 - a) · s_target - a · Σ s / V` for a smoothing of a.
    pub(crate) fn cross_entropy(
        &self,
        scores_nv: &Tensor,
        targets_n: &Tensor,
        smoothing: f64,
        ignored: i64,
    ) -> Result<Tensor, TchError> {
        let most_n1 = self
            .processes
            .max(&scores_nv.f_detach()?.f_amax([1], true)?)?;
        let s_nv = scores_nv.f_sub(&most_n1)?;
        let (index_n, outside_n) = self.local(targets_n)?;
        let of_target_n = s_nv
            .f_gather(1, &index_n.f_unsqueeze(1)?, false)?
            .f_squeeze_dim(1)?
            .f_masked_fill(&outside_n, 0.0)?;
        let sum = |x_nv: &Tensor| x_nv.f_sum_dim_intlist(1, false, Kind::Float);
        // One collective for all three.
        let parts = [sum(&s_nv.f_exp()?)?, of_target_n, sum(&s_nv)?];
        let sums = self.processes.sum_values(&Tensor::f_stack(&parts, 0)?)?;
        let [z_n, of_target_n, sum_n] = [0, 1, 2].map(|row| sums.f_select(0, row));
        let loss_n = z_n?
            .f_log()?
            .f_sub(&of_target_n?.f_mul_scalar(1.0 - smoothing)?)?
            .f_sub(&sum_n?.f_mul_scalar(smoothing / self.size as f64)?)?;
        loss_n.f_masked_fill(&targets_n.f_eq(ignored)?, 0.0)
    }
}
