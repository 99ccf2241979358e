// A fake NCCL on CPUs, for tests. Gloo moves the data; the rest behaves like ProcessGroupNCCL:
// - A "device", here a thread, runs collectives one after the other. A dead or silent peer causes
//   no error: its collective and all later ones hang.
// - Only abort() ends a hang. The collectives then return normally, with garbage. The current
//   collective on a neighbour may do the same: aborted kernels of NCCL pass on their data
//   (prims_ll.h: readLL stops waiting, but storeLL still sets the flag of fresh data).
// - After abort() every collective throws. A second abort(), or freeing the group during an abort,
//   waits for minutes in NCCL; here it ends the process.
// - shutdown() waits for the current collectives and throws after the group's timeout.
// - ROUNDHOUSE_FAULT_SUM=number:what breaks exactly one sum or gathering of 32-bit floats of this
//   process, by its number from 1. `bits`: one bit of the result differs on this rank. `abort`:
//   this process aborts during the sum while all peers live, so the sum lacks this rank's part on
//   all ranks. All later collectives succeed, like kernels that were launched before the abort.
// - The destructor aborts if neither shutdown() nor abort() was called, as ~ProcessGroupNCCL does.
#include <ATen/core/ivalue.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "counted.h"
#include "group.h"

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;
using Future = c10::intrusive_ptr<c10::ivalue::Future>;
template <class T>
using Ptr = c10::intrusive_ptr<T>;

namespace {
constexpr char kAborted[] = "fake-nccl-aborted"; // key that a rank sets when it aborts, in the generation's part of the store
constexpr auto kNever = std::chrono::hours(24); // Gloo's timeout, so that no collective ends by itself
constexpr auto kLookInterval = milliseconds(10);
constexpr auto kAbortTakes = milliseconds(50); // long enough for a test to observe it

std::atomic<uint64_t> num_aborts{0}; // of this process

[[noreturn]] void defect(const char* what) {
  std::fprintf(stderr, "fake NCCL: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

// A launch takes ROUNDHOUSE_FAULT_LAUNCH_MS. In NCCL the thread would spin if the group is aborted
// meanwhile.
void launch(std::atomic<int>& num_launching) {
  static const char* const setting = std::getenv("ROUNDHOUSE_FAULT_LAUNCH_MS");
  if (!setting) return;
  num_launching++;
  std::this_thread::sleep_for(milliseconds(std::atoi(setting)));
  num_launching--;
}

enum class Fault { None, Bits, Abort };

// The fault that ROUNDHOUSE_FAULT_SUM selects for a collective on this tensor.
Fault fault_of(const at::Tensor& tensor) {
  static std::atomic<uint64_t> num_sums{0};
  static const char* const setting = std::getenv("ROUNDHOUSE_FAULT_SUM");
  if (!setting || tensor.scalar_type() != at::kFloat) return Fault::None;
  char* what = nullptr;
  if (std::strtoull(setting, &what, 10) != ++num_sums) return Fault::None;
  return std::string(what) == ":bits" ? Fault::Bits : Fault::Abort;
}

struct Collective {
  std::function<Ptr<c10d::Work>(c10d::Backend&)> start; // on `copies`
  Tensors results, copies;
  bool keeps_input; // the root of a broadcast only reads its own
  bool errs; // one bit of the result is flipped
  Future future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  steady_clock::time_point since = steady_clock::now();

  void finish(bool is_whole) {
    c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < results.size(); i++) {
      if (errs) copies[i].view({-1}).narrow(0, 0, 1).view(at::kInt).bitwise_xor_(1);
      if (is_whole) results[i].copy_(copies[i]);
      else if (!keeps_input) spoil(results[i]);
    }
    future->markCompleted(results);
  }

  // Writes plausible garbage. A real collective leaves data unchanged that it does not receive. So
  // integers, with which the Reducer describes the layout of its buckets, do not change.
  static void spoil(at::Tensor& tensor) {
    if (tensor.scalar_type() == at::kFloat) tensor.fill_(std::numeric_limits<float>::quiet_NaN());
    else if (tensor.scalar_type() == at::kDouble || tensor.scalar_type() == at::kByte) tensor.fill_(1);
  }
};

struct FakeWork : c10d::Work {
  explicit FakeWork(std::shared_ptr<Collective> collective) : collective(std::move(collective)) {}
  std::shared_ptr<Collective> collective;

  bool isCompleted() override { return collective->future->completed(); }
  bool isSuccess() const override { return collective->future->completed(); }
  // NCCL's wait() returns at once, and a later read of the tensor waits. A read on a CPU cannot
  // wait, so wait here.
  bool wait(milliseconds /*timeout*/) override {
    collective->future->wait();
    return true;
  }
  Future getFuture() override { return collective->future; }
  Tensors result() override { return collective->results; }
};

struct All : c10d::Work {
  explicit All(std::vector<Ptr<c10d::Work>> works) : works(std::move(works)) {}
  std::vector<Ptr<c10d::Work>> works;

  bool wait(milliseconds /*timeout*/) override {
    for (const auto& work : works) work->wait();
    return true;
  }
};

// Sends and receives that become one collective.
struct Group {
  Tensors outputs;
  std::vector<int> from;
  std::vector<std::pair<int, Tensors>> sent;
};

// The state that the thread shares with the group. The thread may outlive the group.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Collective>> queue;
  bool is_aborting = false, is_aborted = false, is_shut = false, is_freed = false, is_finishing = false;
  Ptr<c10d::Store> store;
  Ptr<c10d::ProcessGroupGloo> gloo;

  bool is_over() const { return is_aborted || is_freed; }

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return is_over() || !queue.empty(); });
      if (is_over()) return;
      const auto first = queue.front();
      lock.unlock();
      const bool is_whole = does(*first);
      if (!is_whole && !waits_for_neighbours()) return;
      lock.lock();
      if (is_over()) return;
      queue.pop_front();
      is_finishing = true;
      lock.unlock();
      first->finish(is_whole);
      lock.lock();
      is_finishing = false;
      changed.notify_all();
      // No collective runs after a broken one.
      if (!is_whole) changed.wait(lock, [&] { return is_over(); });
    }
  }

  // Hangs until a neighbour aborts. Returns false if this rank itself aborts or frees the group.
  bool waits_for_neighbours() {
    bool can_read_store = true;
    while (true) {
      try {
        if (can_read_store && store->check({kAborted})) return true;
      } catch (const std::exception&) {
        can_read_store = false; // the lost peer hosts the store
      }
      std::unique_lock<std::mutex> lock(mutex);
      if (changed.wait_for(lock, kLookInterval, [&] { return is_over(); })) return false;
    }
  }

  bool does(Collective& collective) {
    try {
      return collective.start(*gloo)->wait();
    } catch (const std::exception&) {
      return false;
    }
  }
};

class FakeNccl : public c10d::Backend {
 public:
  // Like NCCL, returns when all ranks are connected, and fails after the timeout.
  FakeNccl(const Ptr<c10d::Store>& store, int rank, int size, milliseconds timeout, const char* address, std::string name, at::Tensor aborted)
      : Backend(rank, size), timeout_(timeout), name_(std::move(name)), aborted_(std::move(aborted)) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    device_->store = store;
    device_->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    device_->gloo->setTimeout(kNever);
    std::thread([device = device_] { device->run(); }).detach();
  }

  ~FakeNccl() override {
    std::unique_lock<std::mutex> lock(device_->mutex);
    if (device_->is_aborting) defect("a group is freed while it is being aborted");
    if (!device_->is_aborted && !device_->is_shut) abort_with(lock, "without a shutdown, for it is freed");
    device_->is_freed = true;
    device_->changed.notify_all();
  }

  void shutdown() override {
    std::unique_lock<std::mutex> lock(device_->mutex);
    if (device_->is_aborted || device_->is_shut) return;
    if (!device_->changed.wait_for(lock, timeout_, [&] { return (device_->queue.empty() && !device_->is_finishing) || device_->is_aborted; }))
      C10_THROW_ERROR(DistBackendError, "Timed out waiting for the collectives of " + name_);
    device_->is_shut = !device_->is_aborted;
  }

  const std::string getBackendName() const override { return "fake-nccl"; }

  void abort() override {
    std::unique_lock<std::mutex> lock(device_->mutex);
    if (num_launching_ > 0) defect("a group is aborted within a launch, whose thread then spins");
    if (device_->is_aborting) defect("two threads abort one group");
    if (device_->is_aborted) defect("a group is aborted twice");
    abort_with(lock, "");
  }

  // The error that NCCL's own watchdog would report.
  c10d::ErrorType getError() override {
    const std::lock_guard<std::mutex> lock(device_->mutex);
    const bool hangs = !device_->queue.empty() && steady_clock::now() - device_->queue.front()->since > timeout_;
    return hangs ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::SUCCESS;
  }

  Ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto fault = fault_of(tensors.at(0));
    if (fault == Fault::Abort) rh_note_abort(aborted_);
    const auto start = [options, fault](c10d::Backend& gloo, Tensors& copies) {
      if (fault == Fault::Abort) copies[0].zero_();
      return gloo.allreduce(copies, options);
    };
    return enqueue(tensors, start, false, fault == Fault::Bits);
  }

  Ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool sends = options.rootRank == getRank();
    return enqueue(tensors, [options](c10d::Backend& gloo, Tensors& copies) { return gloo.broadcast(copies, options); }, sends);
  }

  Ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto input = inputs.at(0).clone();
    const auto fault = fault_of(input);
    if (fault == Fault::Abort) {
      rh_note_abort(aborted_);
      input.zero_();
    }
    const auto start = [options, input](c10d::Backend& gloo, Tensors& copies) {
      std::vector<Tensors> outputs{copies};
      Tensors inputs{input};
      return gloo.allgather(outputs, inputs, options);
    };
    return enqueue(outputs.at(0), start, false, fault == Fault::Bits);
  }

  Ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> outputs{output.view({-1}).chunk(getSize())};
    Tensors inputs{input.view({-1})};
    return allgather(outputs, inputs, options);
  }

  Ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return enqueue({output}, [options, input = input.clone()](c10d::Backend& gloo, Tensors& copies) mutable {
      return gloo._reduce_scatter_base(copies[0], input, options);
    });
  }

  // Sends and receives between startCoalescing() and endCoalescing() are one collective.
  bool supportsCoalescing() const override { return true; }

  void startCoalescing() override { group_.emplace(); }

  Ptr<c10d::Work> endCoalescing() override {
    auto group = std::exchange(group_, std::nullopt).value();
    return enqueue(group.outputs, [group](c10d::Backend& gloo, Tensors& copies) mutable {
      std::vector<Ptr<c10d::Work>> works;
      for (size_t i = 0; i < copies.size(); i++) {
        Tensors output{copies[i]};
        works.push_back(gloo.recv(output, group.from[i], 0));
      }
      for (auto& [peer, input] : group.sent) works.push_back(gloo.send(input, peer, 0));
      return c10::make_intrusive<All>(std::move(works));
    });
  }

  Ptr<c10d::Work> send(Tensors& tensors, int peer, int tag) override {
    if (group_) {
      group_->sent.emplace_back(peer, Tensors{tensors.at(0).clone()});
      return nullptr;
    }
    return enqueue(tensors, [peer, tag](c10d::Backend& gloo, Tensors& copies) { return gloo.send(copies, peer, tag); }, true);
  }

  Ptr<c10d::Work> recv(Tensors& tensors, int peer, int tag) override {
    if (group_) {
      group_->outputs.push_back(tensors.at(0));
      group_->from.push_back(peer);
      return nullptr;
    }
    return enqueue(tensors, [peer, tag](c10d::Backend& gloo, Tensors& copies) { return gloo.recv(copies, peer, tag); });
  }

  Ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    Tensors none;
    return enqueue(none, [options](c10d::Backend& gloo, Tensors&) { return gloo.barrier(options); });
  }

 private:
  template <class Start>
  Ptr<c10d::Work> enqueue(const Tensors& results, Start start, bool keeps_input = false, bool errs = false) {
    launch(num_launching_);
    auto collective = std::make_shared<Collective>();
    collective->results = results;
    for (const auto& tensor : results) collective->copies.push_back(tensor.detach().clone());
    collective->keeps_input = keeps_input;
    collective->errs = errs;
    collective->start = [start, copies = collective->copies](c10d::Backend& gloo) mutable { return start(gloo, copies); };
    const std::lock_guard<std::mutex> lock(device_->mutex);
    if (device_->is_aborted) C10_THROW_ERROR(DistBackendError, "NCCL communicator was aborted");
    if (device_->is_shut) C10_THROW_ERROR(DistBackendError, "NCCL communicator was shut down");
    device_->queue.push_back(collective);
    device_->changed.notify_all();
    return c10::make_intrusive<FakeWork>(collective);
  }

  void abort_with(std::unique_lock<std::mutex>& lock, const char* why) {
    device_->is_aborting = device_->is_aborted = true;
    num_aborts++;
    std::fprintf(stderr, "fake NCCL: %s is aborted %s\n", name_.c_str(), why);
    notify_neighbours();
    spoil_all(lock);
    lock.unlock();
    std::this_thread::sleep_for(kAbortTakes);
    lock.lock();
    device_->is_aborting = false;
  }

  void spoil_all(std::unique_lock<std::mutex>& lock) {
    const auto pending = std::exchange(device_->queue, {});
    device_->changed.notify_all();
    lock.unlock();
    for (const auto& collective : pending) collective->finish(false);
    lock.lock();
  }

  void notify_neighbours() {
    try {
      device_->store->set(kAborted, std::vector<uint8_t>{1});
    } catch (const std::exception&) {
      // The host of the store is lost. The remaining ranks then hang.
    }
  }

  const milliseconds timeout_;
  const std::string name_;
  const at::Tensor aborted_; // the group's
  std::optional<Group> group_; // of the thread that launches
  std::atomic<int> num_launching_{0};
  const std::shared_ptr<Device> device_ = std::make_shared<Device>();
};
} // namespace

extern "C" uint64_t rh_fake_nccl_aborts() {
  return num_aborts;
}

extern "C" int rh_group_fake_nccl(const RhStore* store, int rank, int size, int64_t timeout_ms, const char* address, const char* name, RhGroup** out) {
  return rh_guard([&] {
    const auto aborted = at::zeros({1}, at::kDouble);
    auto backend = c10::make_intrusive<RhCounted<FakeNccl>>(store->store, rank, size, milliseconds(timeout_ms), address, name, aborted);
    auto group = rh_wrap(store->store, rank, size, name, c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    *out = new RhGroup(std::move(group), aborted);
  });
}
