//! A cluster whose agents start, end and report processes as real ones do.

use std::collections::{BTreeMap, BTreeSet};

use roundhouse_api::TopologyMode;
use roundhouse_contract::{Action as Instruction, ProcessEnd, ProcessRestarts, TerminationMessage};
use roundhouse_contract::{ExitCode, Membership, Reason};
use roundhouse_planner::testing::{World, raw_job, world_of};
use roundhouse_planner::worker_state::is_member_of_any;
use roundhouse_planner::{Plan, Pod, PodPhase, Processes};
use serde_json::json;

/// Pods of each replica.
pub(crate) const SIZE: u32 = 2;

/// The processes of one pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agent {
    /// Lives that processes of this pod have had.
    had: BTreeSet<String>,
    /// The life of the processes that run.
    pub(crate) life: Option<String>,
    /// The newest generation that they have accepted.
    pub(crate) joined: Option<Membership>,
    /// The life that has ended last, and its end.
    ended: Option<(String, Option<ProcessEnd>)>,
    restarts: u32,
    /// Whether processes of this container have been in a generation.
    has_trained: bool,
}

pub(crate) struct Cluster {
    pub(crate) world: World,
    /// By UID of the pod.
    pub(crate) agents: BTreeMap<String, Agent>,
    /// The only pod whose kubelet shows documents; `None`: all do.
    only: Option<String>,
    /// Number of pods that got a domain.
    num_scheduled: u32,
    /// How many pods have room on the nodes; only a gang scheduler knows it.
    pub(crate) room: usize,
}

impl Cluster {
    /// A job with this number of replicas, without objects.
    pub(crate) fn of(replicas: u32, spares: u32) -> Self {
        let mut raw = raw_job(replicas);
        raw.spec.workers.pods_per_replica = Some(SIZE);
        raw.spec.workers.min_replicas = Some(1);
        raw.spec.workers.spares = spares;
        let trainer = raw.spec.trainer.as_mut().unwrap();
        trainer.parallel = serde_json::from_value(json!({"shard": "Zero1"})).unwrap();
        let mut world = world_of(&raw);
        world.job.backoff_limit = 100_000;
        world.job.max_replacements = Some(1_000_000);
        Self {
            world,
            agents: BTreeMap::new(),
            only: None,
            num_scheduled: 0,
            room: usize::MAX,
        }
    }

    /// The same with a topology for each replica.
    pub(crate) fn with_topology(replicas: u32, spares: u32, mode: TopologyMode) -> Self {
        let mut cluster = Self::of(replicas, spares);
        let scheduling = &mut cluster.world.job.scheduling;
        scheduling.topology_key = Some("rack".to_owned());
        scheduling.topology_mode = mode;
        cluster
    }

    /// The same, once it trains.
    pub(crate) fn training(replicas: u32, spares: u32) -> Self {
        let mut cluster = Self::of(replicas, spares);
        cluster.settle();
        assert_eq!(cluster.world.state(), "Training");
        cluster
    }

    pub(crate) fn pod(&self, name: &str) -> &Pod {
        let mut pods = self.world.observed.pods.iter();
        pods.find(|pod| pod.name == name).unwrap()
    }

    /// The place of a pod in the list of the world.
    pub(crate) fn at(&self, name: &str) -> usize {
        let mut pods = self.world.observed.pods.iter();
        pods.position(|pod| pod.name == name).unwrap()
    }

    /// Names of the pods of a replica by their places, from their documents.
    pub(crate) fn replica(&self, index: u32) -> Vec<String> {
        let pods = self.world.observed.pods.iter().filter(|pod| !pod.deleting);
        let places = pods.filter_map(|pod| {
            let place = pod.replica.as_ref()?;
            (place.replica == index).then(|| (place.number, place.pod, pod.name.clone()))
        });
        let mut places: Vec<(u64, u32, String)> = places.collect();
        let newest = places.iter().map(|(number, ..)| *number).max();
        places.retain(|(number, ..)| Some(*number) == newest);
        places.sort();
        places.into_iter().map(|(.., name)| name).collect()
    }

    /// What `kubectl describe` shows beside the state.
    pub(crate) fn message(&self) -> String {
        let front = self.world.observed.status.front();
        front.map(|it| it.message.clone()).unwrap_or_default()
    }

    /// Number of replicas of the newest generation.
    pub(crate) fn num_replicas(&self) -> u32 {
        let newest = self.world.observed.status.membership.as_ref();
        newest.unwrap().nodes
    }

    /// Plans once, and carries it out.
    pub(crate) fn step(&mut self) -> Plan {
        let plan = self.world.plan();
        self.world.carry_out(&plan, usize::MAX);
        plan
    }

    /// Lets operator, kubelets and agents work until nothing changes.
    pub(crate) fn settle(&mut self) {
        for _ in 0..60 {
            let before = self.world.observed.clone();
            self.kubelets_work();
            self.agents_work();
            self.step();
            let same = self.world.observed.pods == before.pods;
            if same && self.world.observed.status == before.status {
                return;
            }
        }
        unreachable!("nothing settles: {:?}", self.world.plan());
    }

    /// Each pod starts, and ended containers restart.
    pub(crate) fn kubelets_work(&mut self) {
        let now = self.world.now;
        let waiting = self.that_wait_for_their_gang();
        for at in 0..self.world.observed.pods.len() {
            let pod = &mut self.world.observed.pods[at];
            if pod.unreachable || waiting.contains(&pod.uid) {
                continue;
            }
            if pod.phase == PodPhase::Pending {
                pod.phase = PodPhase::Running;
                pod.ip = Some(format!("10.0.0.{}", pod.uid));
                pod.container.started_at = Some(now);
                pod.node = Some(format!("n{}", pod.index.unwrap() % 3));
                self.schedule(at);
            }
            let pod = &mut self.world.observed.pods[at];
            let end = pod.container.termination.as_ref();
            let has_ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
            if has_ended && pod.phase == PodPhase::Running && !pod.deleting {
                self.world.restarts(at);
                self.world.observed.pods[at].container.started_at = Some(now);
            }
        }
    }

    /// Chooses a domain for a pod, as the scheduler does: that of a pod with the same label, or
    /// else a rack that varies with the number of scheduled pods.
    fn schedule(&mut self, at: usize) {
        if self.world.job.scheduling.topology_key.is_none() {
            return;
        }
        let label = self.world.observed.pods[at].replica_label;
        let pods = self.world.observed.pods.iter();
        let mut like_it = pods.filter(|it| label.is_some() && it.replica_label == label);
        let near = like_it.find_map(|it| it.domain.clone().filter(|_| !it.left_domain));
        self.num_scheduled += 1;
        let other = format!("rack-{}", self.num_scheduled * 7 / 3 % 3);
        self.world.observed.pods[at].domain = Some(near.unwrap_or(other));
    }

    /// Agents on nodes that answer read their documents, and processes act on them.
    pub(crate) fn agents_work(&mut self) {
        self.only = None;
        self.work();
    }

    /// The agent of one pod does, and the kubelets of the others are late.
    pub(crate) fn agent_works(&mut self, name: &str) {
        self.only = Some(self.pod(name).uid.clone());
        self.work();
    }

    fn work(&mut self) {
        self.read_places();
        self.read_memberships();
        self.report();
    }

    fn read_places(&mut self) {
        let pods = self.world.observed.pods.iter();
        let left: BTreeSet<&String> = pods.map(|pod| &pod.uid).collect();
        self.agents.retain(|uid, _| left.contains(uid));
        for pod in &self.world.observed.pods {
            let agent = self.agents.entry(pod.uid.clone()).or_default();
            if agent.restarts != pod.container.restarts {
                (agent.life, agent.joined, agent.ended) = (None, None, None);
                agent.has_trained = false;
                agent.restarts = pod.container.restarts;
            }
            let end = pod.container.termination.as_ref();
            let has_ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
            if has_ended || pod.phase == PodPhase::Failed {
                (agent.life, agent.joined) = (None, None);
            }
            let is_late = self.only.as_ref().is_some_and(|only| *only != pod.uid);
            let runs = pod.phase == PodPhase::Running && !has_ended && !pod.deleting;
            if pod.unreachable || is_late || !runs {
                continue;
            }
            let Some(place) = &pod.replica else { continue };
            if agent.had.insert(place.life.clone()) {
                (agent.life, agent.joined) = (Some(place.life.clone()), None);
            }
        }
        self.end_broken_lives();
    }

    /// A process that lost one of its replica ends, too, if it had met all of them.
    fn end_broken_lives(&mut self) {
        let names: Vec<String> = self.agents.keys().cloned().collect();
        for uid in names {
            let agent = &self.agents[&uid];
            let Some(life) = agent.life.clone() else {
                continue;
            };
            let is_lost = agent.joined.is_some() && self.num_alive(&life) < SIZE as usize;
            if is_lost {
                self.end(&uid, ExitCode::PeerLost.code());
            }
        }
    }

    pub(crate) fn num_alive(&self, life: &str) -> usize {
        let agents = self.agents.values();
        agents.filter(|it| it.life.as_deref() == Some(life)).count()
    }

    /// Lives whose processes all run.
    fn met(&self) -> BTreeSet<String> {
        let lives = self.agents.values().filter_map(|agent| agent.life.clone());
        lives
            .filter(|life| self.num_alive(life) == SIZE as usize)
            .collect()
    }

    fn read_memberships(&mut self) {
        let met = self.met();
        for pod in &self.world.observed.pods {
            if self.only.as_ref().is_some_and(|only| *only != pod.uid) {
                continue;
            }
            let Some(agent) = self.agents.get_mut(&pod.uid) else {
                continue;
            };
            let Some(life) = agent.life.clone().filter(|life| met.contains(life)) else {
                continue;
            };
            let newest = agent.joined.as_ref().map_or(0, |it| it.generation);
            let document = pod.membership.as_ref().filter(|_| !pod.unreachable);
            let document = document.filter(|it| it.life == life && it.generation > newest);
            match document {
                Some(it) if it.action == Instruction::Leave => {
                    agent.ended = Some((life, None));
                    (agent.life, agent.joined) = (None, None);
                }
                Some(it) => {
                    agent.joined = Some(it.clone());
                    agent.has_trained = true;
                }
                None => {}
            }
        }
        let formed = self.formed().into_iter().max();
        self.world.observed.formed = self.world.observed.formed.max(formed);
    }

    /// Generations whose processes are all in them, from whatever nodes.
    pub(crate) fn formed(&self) -> Vec<u64> {
        let mut places = BTreeMap::<(u64, String), BTreeSet<u32>>::new();
        let mut nodes = BTreeMap::new();
        for agent in self.agents.values().filter(|agent| agent.life.is_some()) {
            let Some(document) = &agent.joined else {
                continue;
            };
            let key = (document.generation, document.nonce.clone());
            places
                .entry(key.clone())
                .or_default()
                .insert(document.node_rank);
            nodes.insert(key, document.nodes);
        }
        let whole = places
            .into_iter()
            .filter(|(key, places)| places.len() == nodes[key] as usize);
        whole.map(|((generation, _), _)| generation).collect()
    }

    /// Readiness and reports as the operator sees them.
    fn report(&mut self) {
        let now = self.world.now;
        let met = self.met();
        for pod in &mut self.world.observed.pods {
            let Some(agent) = self.agents.get(&pod.uid) else {
                continue;
            };
            if pod.unreachable {
                continue;
            }
            let ready = agent.life.as_ref().is_some_and(|life| met.contains(life));
            if pod.ready != ready {
                (pod.ready, pod.ready_at) = (ready, Some(now));
            }
            let is_placed = pod.replica.as_ref().is_some_and(|place| {
                let issued_at = place.issued_at.parse().ok();
                pod.is_incarnation(&place.incarnation) && pod.ready_at >= issued_at
            });
            let is_known = is_placed || is_member_of_any(pod);
            let is_polled = !ready && is_known && pod.phase == PodPhase::Running;
            let last = agent.ended.as_ref();
            let report = ProcessRestarts {
                total: u32::from(last.is_some()),
                preparing: if ready { vec![] } else { vec![0] },
                without_state: false,
                ended_life: match last {
                    Some((life, _)) if agent.life.is_none() => life.clone(),
                    Some(_) | None => String::new(),
                },
                has_lives: true,
                ready,
                last: last.and_then(|(_, end)| end.clone()),
            };
            pod.processes = is_polled.then(|| Processes::of(report, pod.container.restarts));
        }
    }

    fn end(&mut self, uid: &str, exit_code: i32) {
        let agent = self.agents.get_mut(uid).unwrap();
        let generation = agent.joined.as_ref().map_or(0, |it| it.generation);
        if let Some(life) = agent.life.take() {
            agent.ended = Some((life, Some(end_of(generation, exit_code))));
        }
        agent.joined = None;
    }

    /// A process of the pod is killed; its agent continues if it has trained.
    pub(crate) fn process_dies(&mut self, name: &str) {
        let uid = self.pod(name).uid.clone();
        if !self.agents[&uid].has_trained {
            return self.container_dies(name);
        }
        self.end(&uid, 137);
        self.agents_work();
    }

    /// The process of the pod ends because it lost one of another pod.
    pub(crate) fn process_loses_peer(&mut self, name: &str) {
        let uid = self.pod(name).uid.clone();
        self.end(&uid, ExitCode::PeerLost.code());
        self.agents_work();
    }

    /// The container of the pod is killed, and its siblings notice.
    pub(crate) fn container_dies(&mut self, name: &str) {
        let at = self.at(name);
        self.world.ends(at, 137, 0);
        let generation = self.world.generation();
        let pod = &mut self.world.observed.pods[at];
        let end = pod.container.termination.as_mut().unwrap();
        end.message.as_mut().unwrap().generation = generation;
        self.agents_work();
    }

    /// A client deletes the pod, and it is gone at once.
    pub(crate) fn vanishes(&mut self, name: &str) {
        let uid = self.pod(name).uid.clone();
        self.world.vanishes(self.at(name));
        self.agents.remove(&uid);
        self.agents_work();
    }

    /// A client deletes the pod. Its processes leave, unless its node does not answer.
    pub(crate) fn is_deleted(&mut self, name: &str) {
        let (uid, at) = (self.pod(name).uid.clone(), self.at(name));
        self.world.is_deleted(at);
        if !self.pod(name).unreachable && self.agents.contains_key(&uid) {
            self.end(&uid, ExitCode::Left.code());
        }
        self.agents_work();
    }

    /// Its node is cut off, or is back.
    pub(crate) fn is_cut_off(&mut self, name: &str, is: bool) {
        let at = self.at(name);
        let now = self.world.now;
        let pod = &mut self.world.observed.pods[at];
        (pod.unreachable, pod.ready, pod.ready_at) = (is, false, Some(now));
        self.agents_work();
    }
}

fn end_of(generation: u64, exit_code: i32) -> ProcessEnd {
    let reason = ExitCode::from_code(exit_code).map_or(Reason::Killed, Reason::of);
    ProcessEnd {
        local_rank: 0,
        exit_code,
        message: TerminationMessage {
            reason,
            rank: Some(0),
            generation,
            step: 0,
            message: "words".to_owned(),
            progress: None,
        },
        ended_at_seconds: 0,
    }
}
