//! The file that `kubectl apply -f` would take: one TrainingJob and the `ConfigMaps` beside it.

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

/// What the file says that matters here.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) job: TrainingJob,
    config_maps: BTreeMap<String, ConfigMap>,
}

impl Manifest {
    /// Reads a file; with several jobs in it, `name` says which.
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
            bail!("there are several TrainingJobs: say which with --name");
        }
        job.metadata
            .namespace
            .get_or_insert_with(|| "default".to_owned());
        Ok(Self { job, config_maps })
    }

    /// The directory with the job's data: what its volume is here.
    ///
    /// `given` is the user's word; a ConfigMap of the file is written out below `into`.
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
            // An absolute one is that, wherever the data's directory is.
            let may_help = given.is_none() && Path::new(path).is_relative();
            let advice = if may_help {
                ", or give the data's with --data DIR"
            } else {
                ""
            };
            check(&root.join(path), "spec.trainer.data.path", advice)?;
        }
        Ok(root)
    }

    /// What a volume holds, as files below `into`.
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
                bail!("ConfigMap {name}: {file:?} is no name of a file");
            }
            std::fs::write(dir.join(file), bytes)?;
        }
        Ok(dir)
    }
}

/// Refuses what the API server would: see [`roundhouse_api::manifest`]. The job's name is checked with the rest of the spec.
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

/// Whether the data may be made by the program.
fn may_need_no_file(data: &Data) -> bool {
    data.format == DataFormat::Custom
}

fn check(directory: &Path, field: &str, advice: &str) -> anyhow::Result<()> {
    let is_there = directory.is_dir();
    let shown = directory.display();
    ensure!(
        is_there,
        "{field}: there is no directory {shown}: correct it{advice}"
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
    fn a_job_and_the_data_beside_it_are_read() {
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
    fn data_that_is_not_there_is_missed_before_anything_is_started() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let mut manifest = Manifest::parse(&job("a"), None).unwrap();
        let told = |manifest: &Manifest, given: Option<&Path>| {
            manifest.data_dir(given, here).unwrap_err().to_string()
        };
        let said = told(&manifest, Some(&here.join("nowhere")));
        assert!(
            said.starts_with("--data: ") && said.contains("nowhere"),
            "{said}"
        );
        let trainer = manifest.job.spec.trainer.as_mut().unwrap();
        trainer.data.volume = None;
        assert!(told(&manifest, None).contains("give --data DIR"));
        let custom = |manifest: &mut Manifest, format| {
            manifest.job.spec.trainer.as_mut().unwrap().data.format = format;
        };
        // A program of the user's own may make its data.
        custom(&mut manifest, DataFormat::Custom);
        assert_eq!(manifest.data_dir(None, here).unwrap(), Path::new("/"));
        custom(&mut manifest, DataFormat::Idx);
        let trainer = manifest.job.spec.trainer.as_mut().unwrap();
        trainer.data.path = Some("digits".to_owned());
        let said = told(&manifest, Some(here));
        assert!(said.starts_with("spec.trainer.data.path: "), "{said}");
        std::fs::create_dir(here.join("digits")).unwrap();
        assert_eq!(manifest.data_dir(Some(here), here).unwrap(), here);
    }

    #[test]
    fn what_the_schema_of_a_cluster_refuses_is_refused_with_its_bound() {
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
            let told = format!("{:#}", Manifest::parse(&text, None).unwrap_err());
            assert!(told.contains(words), "{told}");
        }
        let another = with("failurePolicy: {backoffLimit: 100000}");
        let both = format!("{another}---\n{}", job.replace("name: a}", "name: b}"));
        assert!(Manifest::parse(&both, Some("b")).is_ok(), "not run");
    }

    #[test]
    fn what_is_missing_or_ambiguous_is_said() {
        let two = format!("{}---\n{}", job("a"), job("b"));
        let told = |text: &str, name| format!("{:#}", Manifest::parse(text, name).unwrap_err());
        assert_eq!(
            told(&two, None),
            "there are several TrainingJobs: say which with --name"
        );
        assert_eq!(told(&two, Some("c")), "there is no TrainingJob c");
        assert_eq!(told("kind: Pod\n", None), "there is no TrainingJob");
        let alone = Manifest::parse(&two, Some("b")).unwrap();
        let missing = alone.data_dir(None, Path::new("/nonexistent")).unwrap_err();
        assert!(missing.to_string().contains("no ConfigMap numbers"));
    }

    #[test]
    fn a_file_of_a_config_map_stays_in_its_directory() {
        let text = format!(
            "{}---\nkind: ConfigMap\napiVersion: v1\nmetadata: {{name: numbers}}\ndata: {{\"../x\": text}}\n",
            job("a")
        );
        let directory = tempfile::tempdir().unwrap();
        let manifest = Manifest::parse(&text, None).unwrap();
        let refused = manifest.data_dir(None, directory.path()).unwrap_err();
        assert!(refused.to_string().contains("no name of a file"));
    }
}
