//! Reads the file for `kubectl apply -f`: one TrainingJob, and the `ConfigMaps` with its data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use roundhouse_api::TrainingJob;
use roundhouse_api::manifest::{self, Violation};
use roundhouse_contract::names;
use roundhouse_contract::trainer::{Data, DataFormat, DataVolume};
use serde_json::Value;

use crate::strict::{self, Kind};

/// The job to run and the `ConfigMaps` of the file.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) job: TrainingJob,
    config_maps: BTreeMap<String, ConfigMap>,
}

impl Manifest {
    /// Reads a file. If it has several jobs, `name` chooses one.
    pub(crate) fn read(path: &Path, name: Option<&str>) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text, name).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str, name: Option<&str>) -> anyhow::Result<Self> {
        let (mut jobs, mut config_maps) = (Vec::new(), BTreeMap::new());
        for document in strict::documents(text)? {
            match strict::kind(&document)? {
                Kind::TrainingJob => {
                    let job: TrainingJob =
                        strict::parse(document.clone()).context("the TrainingJob")?;
                    let theirs = job.metadata.name.as_deref();
                    if name.is_none() || name == theirs {
                        refuse(&document).context("the TrainingJob")?;
                        jobs.push(job);
                    }
                }
                Kind::ConfigMap => {
                    let map: ConfigMap = strict::parse(document).context("a ConfigMap")?;
                    let name = map.metadata.name.clone().unwrap_or_default();
                    config_maps.insert(name, map);
                }
                Kind::Other => {}
            }
        }
        let mut jobs = jobs.into_iter();
        let Some(mut job) = jobs.next() else {
            match name {
                Some(name) => bail!("there is no TrainingJob {name}"),
                None => bail!("there is no TrainingJob"),
            }
        };
        if jobs.next().is_some() {
            bail!("there are several TrainingJobs: choose one with --name");
        }
        job.metadata
            .namespace
            .get_or_insert_with(|| "default".to_owned());
        Ok(Self { job, config_maps })
    }

    /// The directory on this machine that replaces the job's data volume.
    ///
    /// `given` is the value of `--data`. A data volume from a ConfigMap of the file is written to a
    /// directory below `into`.
    pub(crate) fn data_dir(&self, given: Option<&Path>, into: &Path) -> anyhow::Result<PathBuf> {
        let trainer = self.job.spec.trainer.as_ref();
        let data = trainer.map(|trainer| &trainer.data);
        let path = data.and_then(|data| data.path.as_deref());
        let root = match (given, data.and_then(|data| data.volume.as_ref())) {
            (Some(given), _) => std::path::absolute(given).context("--data")?,
            (None, Some(volume)) => self.write_out(volume, into)?,
            (None, None) if path.is_none() && !data.is_some_and(may_need_no_file) => {
                bail!("spec.trainer.data: names neither volume nor path: give --data DIR")
            }
            (None, None) => PathBuf::from("/"),
        };
        if given.is_some() {
            check(&root, "--data", "")?;
        }
        if let Some(path) = path {
            // An absolute path does not depend on the data directory.
            let may_help = given.is_none() && Path::new(path).is_relative();
            let advice = if may_help {
                ", or give the data directory with --data DIR"
            } else {
                ""
            };
            check(&root.join(path), "spec.trainer.data.path", advice)?;
        }
        Ok(root)
    }

    /// Writes the ConfigMap of a volume as files below `into`.
    fn write_out(&self, volume: &DataVolume, into: &Path) -> anyhow::Result<PathBuf> {
        let Some(source) = &volume.config_map else {
            bail!(
                "the job's data is in a volume of a cluster: give its directory here with --data DIR"
            );
        };
        let name = &source.name;
        let Some(map) = self.config_maps.get(name) else {
            let others: Vec<&str> = self.config_maps.keys().map(String::as_str).collect();
            let has = match others[..] {
                [] => "it has none".to_owned(),
                _ => format!("it has {}", others.join(", ")),
            };
            bail!(
                "the file has no ConfigMap {name}, where the job's data is ({has}): correct the name, add it or give --data DIR"
            );
        };
        let dir = into.join("data");
        std::fs::create_dir_all(&dir)?;
        let texts = map.data.iter().flatten();
        let texts = texts.map(|(file, text)| (file, text.as_bytes()));
        let binaries = map.binary_data.iter().flatten();
        let binaries = binaries.map(|(file, bytes)| (file, bytes.0.as_slice()));
        for (file, bytes) in texts.chain(binaries) {
            let is_plain = !file.is_empty() && !file.contains('/') && file != "..";
            if !is_plain {
                bail!("ConfigMap {name}: {file:?} is not a file name");
            }
            std::fs::write(dir.join(file), bytes)?;
        }
        Ok(dir)
    }
}

/// Refuses values that the API server would refuse; see [`roundhouse_api::manifest`]. Validation of
/// the spec checks the job's name.
fn refuse(document: &Value) -> anyhow::Result<()> {
    if let Some(namespace) = document["metadata"]["namespace"].as_str()
        && let Some(message) = names::refusal_of_namespace(namespace)
    {
        bail!("metadata.namespace: {message}");
    }
    let found = manifest::violations(document);
    let found: Vec<String> = found.iter().map(Violation::to_string).collect();
    ensure!(found.is_empty(), "{}", found.join("; "));
    Ok(())
}

/// Whether the program may create its data itself.
fn may_need_no_file(data: &Data) -> bool {
    data.format == DataFormat::Custom
}

fn check(directory: &Path, field: &str, advice: &str) -> anyhow::Result<()> {
    let is_there = directory.is_dir();
    let shown = directory.display();
    ensure!(
        is_there,
        "{field}: there is no directory {shown}: correct the path{advice}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> String {
        format!(
            "kind: TrainingJob\napiVersion: roundhouse.dev/v1alpha1\nmetadata: {{name: {name}}}\n\
             spec:\n  workers: {{replicas: 2}}\n  trainer: {{model: {{name: mlp}}, \
             data: {{format: idx, volume: {{configMap: {{name: numbers}}}}}}, globalBatchSize: 8, epochs: 1}}\n"
        )
    }

    #[test]
    fn job_and_its_config_map_data_are_read() {
        let text = format!(
            "{}---\nkind: ConfigMap\napiVersion: v1\nmetadata: {{name: numbers}}\n\
             binaryData: {{one: AQI=}}\ndata: {{two: text}}\n",
            job("a")
        );
        let manifest = Manifest::parse(&text, None).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let data = manifest.data_dir(None, directory.path()).unwrap();
        assert_eq!(std::fs::read(data.join("one")).unwrap(), [1, 2]);
        assert_eq!(std::fs::read(data.join("two")).unwrap(), b"text");
        let given = manifest.data_dir(Some(directory.path()), directory.path());
        assert_eq!(given.unwrap(), directory.path());
    }

    #[test]
    fn missing_data_is_refused_before_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let mut manifest = Manifest::parse(&job("a"), None).unwrap();
        let refusal = |manifest: &Manifest, given: Option<&Path>| {
            manifest.data_dir(given, here).unwrap_err().to_string()
        };
        let error = refusal(&manifest, Some(&here.join("nowhere")));
        assert!(
            error.starts_with("--data: ") && error.contains("nowhere"),
            "{error}"
        );
        let trainer = manifest.job.spec.trainer.as_mut().unwrap();
        trainer.data.volume = None;
        assert!(refusal(&manifest, None).contains("give --data DIR"));
        let custom = |manifest: &mut Manifest, format| {
            manifest.job.spec.trainer.as_mut().unwrap().data.format = format;
        };
        // The user's own program may create its data.
        custom(&mut manifest, DataFormat::Custom);
        assert_eq!(manifest.data_dir(None, here).unwrap(), Path::new("/"));
        custom(&mut manifest, DataFormat::Idx);
        let trainer = manifest.job.spec.trainer.as_mut().unwrap();
        trainer.data.path = Some("digits".to_owned());
        let error = refusal(&manifest, Some(here));
        assert!(error.starts_with("spec.trainer.data.path: "), "{error}");
        std::fs::create_dir(here.join("digits")).unwrap();
        assert_eq!(manifest.data_dir(Some(here), here).unwrap(), here);
    }

    #[test]
    fn schema_violation_is_refused_with_its_bound() {
        let job = job("a");
        let with = |line: &str| format!("{job}  {line}\n");
        for (text, words) in [
            (
                with("failurePolicy: {backoffLimit: 100000}"),
                "spec.failurePolicy.backoffLimit: must be at most 10000",
            ),
            (
                with("managedBy: ''"),
                "spec.managedBy: must be at least 1 characters long",
            ),
            (
                job.replace("{name: a}", "{name: a, namespace: Ml}"),
                "metadata.namespace: must be at most 63",
            ),
        ] {
            let error = format!("{:#}", Manifest::parse(&text, None).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        let another = with("failurePolicy: {backoffLimit: 100000}");
        let both = format!("{another}---\n{}", job.replace("name: a}", "name: b}"));
        assert!(Manifest::parse(&both, Some("b")).is_ok(), "not run");
    }

    #[test]
    fn missing_or_ambiguous_job_is_refused() {
        let two = format!("{}---\n{}", job("a"), job("b"));
        let error = |text: &str, name| format!("{:#}", Manifest::parse(text, name).unwrap_err());
        assert_eq!(
            error(&two, None),
            "there are several TrainingJobs: choose one with --name"
        );
        assert_eq!(error(&two, Some("c")), "there is no TrainingJob c");
        assert_eq!(error("kind: Pod\n", None), "there is no TrainingJob");
        let alone = Manifest::parse(&two, Some("b")).unwrap();
        let missing = alone.data_dir(None, Path::new("/nonexistent")).unwrap_err();
        assert!(missing.to_string().contains("no ConfigMap numbers"));
    }

    #[test]
    fn config_map_file_cannot_leave_its_directory() {
        let text = format!(
            "{}---\nkind: ConfigMap\napiVersion: v1\nmetadata: {{name: numbers}}\ndata: {{\"../x\": text}}\n",
            job("a")
        );
        let directory = tempfile::tempdir().unwrap();
        let manifest = Manifest::parse(&text, None).unwrap();
        let refused = manifest.data_dir(None, directory.path()).unwrap_err();
        assert!(refused.to_string().contains("is not a file name"));
    }
}
