//! Experts: parts of a model of which a token uses only some. The processes of a replica can have
//! different ones.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tch::{TchError, Tensor};

use crate::parameters::Parameters;

/// Experts of a layer, each with weights of its own.
///
/// With `trainer.parallel.expert` the processes of a worker have equal numbers of them, and send
/// each other the inputs.
#[derive(Debug)]
pub struct Experts<E> {
    experts: Arc<Vec<E>>,
    /// The places of the weights of each expert.
    places: Vec<Range<usize>>,
}

impl<E: Send + Sync + 'static> Experts<E> {
    /// Creates experts. `build` creates the one with this number and adds its weights to
    /// `parameters`.
    ///
    /// # Errors
    /// `build` returns an error.
    pub fn build(
        parameters: &mut Parameters,
        num_experts: usize,
        mut build: impl FnMut(&mut Parameters, usize) -> Result<E, TchError>,
    ) -> Result<Self, TchError> {
        let (mut experts, mut places) = (Vec::new(), Vec::new());
        for expert in 0..num_experts {
            let first = parameters.tensors().len();
            experts.push(build(parameters, expert)?);
            places.push(first..parameters.tensors().len());
        }
        parameters.add_experts(&places);
        Ok(Self {
            experts: Arc::new(experts),
            places,
        })
    }

    /// Returns the outputs of all experts for `x` `[E · N, …]`: N rows for each of E experts, in
    /// their order. `run` computes an expert for `[n, …]` and must keep the first dimension. It is
    /// a function of its arguments, and uses only the weights of its expert.
    ///
    /// If the processes of a worker have different experts, n may be the rows of several processes.
    /// All uses in a pass must then have the same number of rows, and the loss of each process must
    /// depend on the outputs, if only by a factor of 0: the backward passes of the others wait for
    /// this one.
    ///
    /// # Errors
    /// `run` fails, the rows cannot be divided, or another process of the replica is lost.
    pub fn apply<R>(&self, parameters: &Parameters, x: &Tensor, run: R) -> Result<Tensor, TchError>
    where
        R: Fn(&E, &Parameters, &Tensor) -> Result<Tensor, TchError> + Send + 'static,
    {
        let (rows, number) = (x.size().first().copied(), self.experts.len());
        let is_divided = usize::try_from(rows.unwrap_or_default())
            .is_ok_and(|rows| number > 0 && rows.is_multiple_of(number));
        if !is_divided {
            let size = x.size();
            let words = format!(
                "an input of {size:?} for {number} experts: pass equally many rows for each"
            );
            return Err(TchError::Shape(words));
        }
        let Some((expert_parallel, unit)) = expert_parallel_of(parameters, &self.places) else {
            return run_all(&self.experts, parameters, x, &run);
        };
        let (experts, own) = (
            Arc::clone(&self.experts),
            expert_parallel.own(self.experts.len()),
        );
        let places: Vec<usize> = self.places[own.clone()].iter().cloned().flatten().collect();
        let count = i64::try_from(own.len()).unwrap_or(i64::MAX);
        let run = move |x: &Tensor, weights: Vec<Tensor>| {
            let window = Parameters::window(places.clone(), weights);
            run_all(&experts[own.clone()], &window, x, &run)
        };
        let outputs = expert_parallel.handle.apply(unit, count, x, run);
        outputs.map_err(|error| TchError::Torch(error.message))
    }
}

/// Where the experts with these places are, and their unit; `None`: this process has all of them.
fn expert_parallel_of<'a>(
    parameters: &'a Parameters,
    places: &[Range<usize>],
) -> Option<(&'a ExpertParallel, usize)> {
    let expert_parallel = parameters.division().expert_parallel.as_ref()?;
    Some((expert_parallel, expert_parallel.unit(places)?))
}

/// The outputs of these experts for equal numbers of rows.
fn run_all<E>(
    experts: &[E],
    parameters: &Parameters,
    x: &Tensor,
    run: &impl Fn(&E, &Parameters, &Tensor) -> Result<Tensor, TchError>,
) -> Result<Tensor, TchError> {
    let rows = x.f_chunk(i64::try_from(experts.len()).unwrap_or(i64::MAX), 0)?;
    let outputs = experts.iter().zip(rows);
    let outputs: Result<Vec<Tensor>, _> = outputs
        .map(|(expert, rows)| run(expert, parameters, &rows))
        .collect();
    Tensor::f_cat(&outputs?, 0)
}

/// Where the experts of a model are, if the processes of a replica have different ones.
#[derive(Debug)]
pub(crate) struct ExpertParallel {
    handle: roundhouse_c10d::Experts,
    /// The unit of the experts whose first weight is at a place.
    units: HashMap<usize, usize>,
    /// This process and the number of processes.
    process: (usize, usize),
}

impl ExpertParallel {
    /// For the process with this index of a number of processes.
    pub(crate) fn new(handle: roundhouse_c10d::Experts, process: (usize, usize)) -> Self {
        Self {
            handle,
            units: HashMap::new(),
            process,
        }
    }

    /// Adds a unit of the experts with these places.
    pub(crate) fn add(&mut self, places: &[Range<usize>], unit: usize) {
        let first = places.first().map(|it| it.start);
        self.units.extend(first.map(|first| (first, unit)));
    }

    fn unit(&self, places: &[Range<usize>]) -> Option<usize> {
        self.units.get(&places.first()?.start).copied()
    }

    /// The experts of this process, of a number of experts.
    fn own(&self, number: usize) -> Range<usize> {
        let (index, size) = self.process;
        let count = number / size.max(1);
        index * count..(index + 1) * count
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;
    use tch::kind::FLOAT_CPU;

    use super::*;
    use crate::parameters::Role;

    #[test]
    fn each_expert_gets_its_rows() {
        let mut parameters = Parameters::default();
        let build = |parameters: &mut Parameters, number: usize| {
            let factor = Tensor::full([1], number as f64 + 1.0, FLOAT_CPU);
            parameters.push(format!("factor.{number}"), Role::Weight, &factor)
        };
        let experts = Experts::build(&mut parameters, 3, build).unwrap();
        assert_eq!(experts.places, [0..1, 1..2, 2..3]);
        let x = Tensor::ones([6, 2], FLOAT_CPU);
        let run =
            |place: &usize, parameters: &Parameters, x: &Tensor| x.f_mul(parameters.at(*place));
        let y = experts.apply(&parameters, &x, run).unwrap();
        let sums = y.sum_dim_intlist(1, false, Kind::Float);
        let sums = Vec::<f32>::try_from(sums).unwrap();
        assert_eq!(sums, [2.0, 2.0, 4.0, 4.0, 6.0, 6.0]);
        let other = experts.apply(&parameters, &x.narrow(0, 0, 4), run);
        let error = other.unwrap_err().to_string();
        assert!(error.contains("equally many rows"), "{error}");
    }
}
