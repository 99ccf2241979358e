//! The keys of the job's `trainer.options`.

use roundhouse_trainer::OptionsInvalid;
use serde::Deserialize;

/// Settings of the model and of the data. All keys have defaults. The error of an unknown key names
/// it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Options {
    /// The number of measured hours that the model reads.
    pub past_hours: u32,
    /// The number of hours that the model forecasts.
    pub future_hours: u32,
    /// The number of units of the recurrent layer.
    pub units: u32,
    /// The length of the training data in hours.
    pub train_hours: u32,
    /// The length of the test data in hours. It follows the training data.
    pub test_hours: u32,
    /// The standard deviation of a measurement's error in metres.
    pub noise: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            past_hours: 48,
            future_hours: 12,
            units: 32,
            train_hours: 8_760,
            test_hours: 2_190,
            noise: 0.05,
        }
    }
}

impl Options {
    /// Checks the ranges of the values.
    ///
    /// # Errors
    /// A value is out of range. The error names the first such key.
    pub fn validate(&self) -> Result<(), OptionsInvalid> {
        let positive = [
            ("pastHours", self.past_hours),
            ("futureHours", self.future_hours),
            ("units", self.units),
        ];
        for (key, value) in positive {
            if !(1..=100_000).contains(&value) {
                return Err(OptionsInvalid::new(key, "must be between 1 and 100000"));
            }
        }
        let least = self.past_hours + self.future_hours;
        for (key, value) in [
            ("trainHours", self.train_hours),
            ("testHours", self.test_hours),
        ] {
            if !(least..=10_000_000).contains(&value) {
                let message =
                    format!("must be between pastHours + futureHours ({least}) and 10000000");
                return Err(OptionsInvalid::new(key, message));
            }
        }
        if !(0.0..=10.0).contains(&self.noise) {
            return Err(OptionsInvalid::new(
                "noise",
                "must be between 0 and 10 metres",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_key_of_a_value_out_of_range() {
        type Change = fn(&mut Options);
        let cases: [(&str, Change); 5] = [
            ("units", |o| o.units = 0),
            ("futureHours", |o| o.future_hours = 0),
            ("trainHours", |o| o.train_hours = 59),
            ("testHours", |o| o.test_hours = 0),
            ("noise", |o| o.noise = f64::NAN),
        ];
        assert_eq!(Options::default().validate(), Ok(()));
        for (key, change) in cases {
            let mut options = Options::default();
            change(&mut options);
            assert_eq!(options.validate().unwrap_err().key, key);
        }
    }
}
