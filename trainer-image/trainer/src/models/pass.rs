//! One pass through a network: its mode, and the statistics that its batch normalizations computed.

use tch::{Kind, TchError, Tensor};

use crate::parameters::Parameters;
use crate::ranks::Ranks;
use crate::task::Mode;

/// One pass through a network, which collects the statistics of batch normalizations.
#[derive(Debug)]
pub struct Pass {
    mode: Mode,
    ranks: Option<Ranks>,
    /// Places of running statistics, and their values in this pass summed over samples.
    statistics: Vec<(usize, Tensor)>,
}

impl Pass {
    /// A pass without any statistics yet.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            ranks: None,
            statistics: Vec::new(),
        }
    }

    /// Sets the ranks that compute the pass together, each on its own part of the batch.
    #[must_use]
    pub fn among(self, ranks: Option<Ranks>) -> Self {
        Self { ranks, ..self }
    }

    /// The ranks that compute the pass together; `None`: this rank alone.
    #[must_use]
    pub const fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    /// The mode: training or evaluation.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether this is a pass of a training step.
    #[must_use]
    pub const fn trains(&self) -> bool {
        matches!(self.mode, Mode::Train { .. })
    }

    /// Records a statistic, summed over the samples of the pass, for the running statistic at a
    /// place of the parameters.
    pub fn note(&mut self, place: usize, sum_over_samples: Tensor) {
        self.statistics.push((place, sum_over_samples));
    }

    /// Adds the statistics that a part of the pass has recorded.
    pub fn absorb(&mut self, part: Self) {
        self.statistics.extend(part.statistics);
    }

    /// The loss term that [`Role::Statistic`](crate::Role::Statistic) describes; `None` if no
    /// statistic was recorded.
    ///
    /// # Errors
    /// A statistic does not have the shape of its running value.
    pub fn statistics_term(&self, parameters: &Parameters) -> Result<Option<Tensor>, TchError> {
        if self.statistics.is_empty() {
            return Ok(None);
        }
        let running: Vec<&Tensor> = self
            .statistics
            .iter()
            .map(|(place, _)| parameters.at(*place))
            .collect();
        let sums: Vec<&Tensor> = self.statistics.iter().map(|(_, sum)| sum).collect();
        // One long vector: a few kernels instead of a few for each layer.
        let running = Tensor::f_cat(&running, 0)?;
        let zero = running.f_sub(&running.f_detach()?)?;
        let term = zero.f_mul(&Tensor::f_cat(&sums, 0)?)?;
        Ok(Some(term.f_sum(None::<Kind>)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Role;

    #[test]
    fn statistics_term_is_0_and_its_gradient_is_the_statistic() {
        let mut parameters = Parameters::default();
        let role = Role::Statistic { momentum: 0.1 };
        for name in ["a", "b"] {
            let value = Tensor::from_slice(&[7.0_f32, -2.0]);
            parameters.push(name, role, &value).unwrap();
        }
        let mut pass = Pass::new(Mode::Evaluate);
        assert!(pass.statistics_term(&parameters).unwrap().is_none());
        pass.note(1, Tensor::from_slice(&[3.0_f32, 4.0]));
        pass.note(0, Tensor::from_slice(&[5.0_f32, 6.0]));
        let term = pass.statistics_term(&parameters).unwrap().unwrap();
        term.backward();
        assert!(term.double_value(&[]).abs() < f64::EPSILON);
        let gradient = |place: usize| Vec::<f32>::try_from(parameters.at(place).grad()).unwrap();
        assert_eq!(gradient(1), [3.0, 4.0]);
        assert_eq!(gradient(0), [5.0, 6.0]);
    }
}
