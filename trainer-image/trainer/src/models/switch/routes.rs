//! The places of tokens in the batches of experts.

use tch::{Kind, TchError, Tensor};

/// Which token is at which place. Each of E experts has a batch of `B · C` places: C for each of B
/// sequences. All batches have this size, filled or not, so the host knows the shapes of products
/// without reading the probabilities.
#[derive(Debug)]
pub(super) struct Routes {
    /// The token of each place, from 0 to `B · T - 1`, or `B · T` if the place is empty:
    /// `[E · B · C]`.
    token_of_place: Tensor,
    /// The place of each token, or `E · B · C` if its expert has no place for it: `[B · T]`.
    place_of_token: Tensor,
}

impl Routes {
    /// Gives the places of an expert to the earliest tokens of each sequence that are sent to it.
    /// `is_sent_bte`: whether a token is sent to an expert, true for one expert of each token.
    pub(super) fn new(is_sent_bte: &Tensor, capacity: i64) -> Result<Self, TchError> {
        let [num_sequences, length, num_experts]: [i64; 3] = is_sent_bte
            .size()
            .try_into()
            .map_err(|size| TchError::Shape(format!("{size:?} instead of [B, T, E]")))?;
        let num_tokens = num_sequences * length;
        let num_places = num_experts * num_sequences * capacity;
        let options = (Kind::Int64, is_sent_bte.device());
        let sent_bte = is_sent_bte.f_to_kind(Kind::Int64)?;
        // The first of the places that an expert has for a sequence.
        let experts_e = Tensor::f_arange(num_experts, options)?.f_mul_scalar(num_sequences)?;
        let first_be = Tensor::f_arange(num_sequences, options)?
            .f_unsqueeze(1)?
            .f_add(&experts_e)?
            .f_mul_scalar(capacity)?;
        let number_bte = sent_bte.f_cumsum(1, Kind::Int64)?.f_sub_scalar(1)?;
        let of_expert = |x_bte: &Tensor| {
            let sum_bt = x_bte
                .f_mul(&sent_bte)?
                .f_sum_dim_intlist(2, false, Kind::Int64)?;
            sum_bt.f_flatten(0, 1)
        };
        let number_n = of_expert(&number_bte)?;
        let place_n = of_expert(&first_be.f_unsqueeze(1)?)?.f_add(&number_n)?;
        let place_of_token = place_n.f_masked_fill(&number_n.f_ge(capacity)?, num_places)?;
        // All tokens without a place write to the last element, which is then cut off.
        let token_of_place = Tensor::f_full(num_places + 1, num_tokens, options)?
            .f_scatter(0, &place_of_token, &Tensor::f_arange(num_tokens, options)?)?
            .f_narrow(0, 0, num_places)?;
        Ok(Self {
            token_of_place,
            place_of_token,
        })
    }

    /// The batches of all experts `[E · B · C, W]`, with zeros at empty places, for tokens
    /// `[B · T, W]`.
    pub(super) fn dispatch(&self, tokens_nw: &Tensor) -> Result<Tensor, TchError> {
        select(tokens_nw, &self.token_of_place)
    }

    /// The outputs `[B · T, W]` of all tokens, with zeros for tokens without a place, for outputs
    /// `[E · B · C, W]` of all experts.
    pub(super) fn combine(&self, outputs_nw: &Tensor) -> Result<Tensor, TchError> {
        select(outputs_nw, &self.place_of_token)
    }
}

/// The rows of a matrix with these indices. The index after the last row gives zeros. No other
/// index occurs twice, so the gradient of a row is no sum, whose order could change its bits.
fn select(x_nw: &Tensor, indices: &Tensor) -> Result<Tensor, TchError> {
    let zeros = Tensor::f_zeros([1, x_nw.size()[1]], (x_nw.kind(), x_nw.device()))?;
    Tensor::f_cat(&[x_nw, &zeros], 0)?.f_index_select(0, indices)
}

#[cfg(test)]
mod tests {
    use tch::kind::FLOAT_CPU;

    use super::*;

    /// The routes of tokens that are sent to these experts.
    fn routes(experts_bt: &[&[i64]], num_experts: i64, capacity: i64) -> Routes {
        let num_sequences = i64::try_from(experts_bt.len()).unwrap();
        let experts = Tensor::from_slice(&experts_bt.concat()).reshape([num_sequences, -1, 1]);
        let numbers = Tensor::arange(num_experts, (Kind::Int64, tch::Device::Cpu));
        Routes::new(&experts.eq_tensor(&numbers), capacity).unwrap()
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor).unwrap()
    }

    #[test]
    fn earliest_tokens_of_each_sequence_have_the_places() {
        let routes = routes(&[&[1, 1, 0, 1], &[0, 0, 0, 1]], 2, 2);
        // Expert 0: two places of sequence 0, then two of sequence 1; then expert 1.
        assert_eq!(numbers(&routes.token_of_place), [2, 8, 4, 5, 0, 1, 7, 8]);
        assert_eq!(numbers(&routes.place_of_token), [4, 5, 0, 8, 2, 3, 8, 6]);
    }

    #[test]
    fn tokens_return_to_their_places_and_others_are_zero() {
        let routes = routes(&[&[1, 1, 0, 1], &[0, 0, 0, 1]], 2, 2);
        let tokens = (Tensor::arange(8, FLOAT_CPU) + 1.0)
            .reshape([8, 1])
            .set_requires_grad(true);
        let back = routes.combine(&routes.dispatch(&tokens).unwrap()).unwrap();
        let values = |tensor: &Tensor| Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap();
        assert_eq!(values(&back), [1.0, 2.0, 3.0, 0.0, 5.0, 6.0, 0.0, 8.0]);
        back.sum(Kind::Float).backward();
        assert_eq!(
            values(&tokens.grad()),
            [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
        );
    }

    #[test]
    fn sequence_has_the_same_tokens_in_any_batch() {
        let sequences: [&[i64]; 3] = [&[2, 2, 2, 0, 1], &[0, 1, 2, 0, 0], &[1, 1, 1, 1, 1]];
        let together = routes(&sequences, 3, 2).place_of_token.ne(18);
        for (number, sequence) in (0..).zip(&sequences) {
            let alone = routes(&[sequence], 3, 2).place_of_token.ne(6);
            assert!(alone.equal(&together.narrow(0, 5 * number, 5)));
        }
    }
}
