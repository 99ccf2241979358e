//! Measures the sections of a step, with the clock of the host or of the device.
//!
//! If the host waits for each part of a step, the host's clock measures the parts. If the host only
//! launches the parts, events in the device's stream measure them: the time between two events is
//! the time of the part that was launched between them, including the device's waits. On a CPU both
//! are the same.

use std::time::Duration;

use roundhouse_c10d::{Error, Event};
use roundhouse_report::{Section, Sections};
use tch::Device;

/// Measures the sections of one step.
#[derive(Debug)]
pub enum Stopwatch {
    /// Measures with the clock of the host.
    Host(Sections),
    /// Measures with events on the device.
    Device(Marks),
}

/// Events in the work of a device, each at the end of a section.
#[derive(Debug)]
pub struct Marks {
    device: Device,
    start: Event,
    /// Each measured section with the event at its end.
    ends: Vec<(Section, Event)>,
    /// How long the host waited for peers in a section.
    waits: Vec<(Section, Duration)>,
    /// The first error of recording an event.
    failed: Option<Error>,
}

impl Stopwatch {
    /// Starts to measure on the host.
    #[must_use]
    pub fn on_host() -> Self {
        Self::Host(Sections::default())
    }

    /// Starts to measure on a device, at the end of its work so far.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn on_device(device: Device) -> Result<Self, Error> {
        Ok(Self::Device(Marks {
            device,
            start: Event::record_timed(device)?,
            ends: Vec::new(),
            waits: Vec::new(),
            failed: None,
        }))
    }

    /// Runs `work` and adds its time to `section`. On a device, the time since the end of the
    /// previous section counts, too.
    pub fn time<T>(&mut self, section: Section, work: impl FnOnce() -> T) -> T {
        match self {
            Self::Host(sections) => sections.time(section, work),
            Self::Device(marks) => {
                let result = work();
                marks.add(section);
                result
            }
        }
    }

    /// Records that the host waited for peers for this long within a section. Waits of a GPU within
    /// a pass are not known and count as compute time of the rank.
    pub fn waited(&mut self, section: Section, waited: Duration) {
        match self {
            Self::Host(sections) => sections.waited(section, waited),
            Self::Device(marks) => marks.waits.push((section, waited)),
        }
    }

    /// The event after all measured work; `None` on the host, where the work is already done.
    #[must_use]
    pub fn end(&self) -> Option<&Event> {
        match self {
            Self::Host(_) => None,
            Self::Device(Marks { start, ends, .. }) => {
                Some(ends.last().map_or(start, |(_, event)| event))
            }
        }
    }

    /// The measured times. Call it after the event [`Self::end`] has passed.
    ///
    /// # Errors
    /// The event has not passed, or the device fails.
    pub fn read(self) -> Result<Sections, Error> {
        match self {
            Self::Host(sections) => Ok(sections),
            Self::Device(marks) => marks.read(),
        }
    }
}

impl Marks {
    fn add(&mut self, section: Section) {
        match Event::record_timed(self.device) {
            Ok(event) => self.ends.push((section, event)),
            Err(error) => self.failed = Some(error),
        }
    }

    fn read(self) -> Result<Sections, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut sections = Sections::default();
        let mut before = self.start;
        for (section, event) in self.ends {
            sections.add(section, event.since(&before)?);
            before = event;
        }
        for (section, waited) in self.waits {
            sections.waited(section, waited);
        }
        Ok(sections)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SPAN: Duration = Duration::from_millis(2);

    fn work() {
        let started = Instant::now();
        while started.elapsed() < SPAN {}
    }

    #[test]
    fn each_clock_counts_time_under_its_section() {
        for is_host in [true, false] {
            let begun = Instant::now();
            let mut stopwatch = if is_host {
                Stopwatch::on_host()
            } else {
                Stopwatch::on_device(Device::Cpu).unwrap()
            };
            for section in [Section::Data, Section::Forward, Section::Forward] {
                stopwatch.time(section, work);
            }
            stopwatch.waited(Section::Forward, SPAN);
            let sections = stopwatch.read().unwrap();
            let most = begun.elapsed();
            assert!(sections.spent(Section::Data) >= SPAN);
            assert!(sections.spent(Section::Forward) >= SPAN);
            assert_eq!(sections.spent(Section::Communication), SPAN);
            assert_eq!(sections.spent(Section::Optimizer), Duration::ZERO);
            assert!(sections.own_time() + SPAN <= most);
        }
    }

    #[test]
    fn step_ends_at_the_end_of_its_last_section() {
        assert!(Stopwatch::on_host().end().is_none());
        let mut stopwatch = Stopwatch::on_device(Device::Cpu).unwrap();
        assert!(stopwatch.end().unwrap().has_passed().unwrap());
        stopwatch.time(Section::Data, work);
        let end = Event::record_timed(Device::Cpu).unwrap();
        assert!(end.since(stopwatch.end().unwrap()).unwrap() < SPAN);
    }
}
