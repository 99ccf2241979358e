//! The TrainingJob custom resource.
