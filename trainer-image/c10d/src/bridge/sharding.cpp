// Gathers weights that are sharded over the processes of a group, and exchanges their gradients.
#include "sharding.h"

#include <c10/core/GradMode.h>

#include <chrono>
#include <utility>

#include "exchange.h"
#include "group.h"
#include "tensors.h"

namespace {
// Adds to a tensor that may be undefined.
void add(at::Tensor& sum, at::Tensor tensor) {
  if (sum.defined()) sum.add_(tensor);
  else sum = std::move(tensor);
}
} // namespace

void rh_drop_memory(const at::Tensor& tensor) {
  tensor.storage().set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
}

RhUnits::~RhUnits() = default;

void RhUnits::wait(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto begun = std::chrono::steady_clock::now();
  collective([&] {
    if (work) work->wait();
  });
  rh_count_wait(std::chrono::steady_clock::now() - begun);
}

const std::vector<int64_t>& RhUnits::rows_of_all(int64_t own, at::Device device) {
  if (rows.empty()) {
    c10::AutoGradMode no_grad(false);
    const auto options = at::TensorOptions(at::kLong).device(device);
    auto go = at::full({num_processes()}, own, options), come = at::empty_like(go);
    c10::intrusive_ptr<c10d::Work> work;
    collective([&] { work = rh_begin_exchange(*group, come, go); });
    wait(work);
    come = come.cpu();
    rows.assign(come.const_data_ptr<int64_t>(), come.const_data_ptr<int64_t>() + num_processes());
  }
  TORCH_CHECK(
      rows[group->getRank()] == own, "experts get ", own, " rows, but those before them in this pass got ", rows[group->getRank()],
      ": all experts of a model must get the same number");
  return rows;
}

void RhUnits::begin_pass() {
  if (!uses.empty()) last_uses = std::exchange(uses, {});
  rows.clear();
  for (const auto& unit : all) {
    // The last pass may have gathered it in vain.
    unit->gathered.reset();
    unit->gathering.clear();
  }
}

void RhUnits::end_pass() {
  if (auto* unit = std::exchange(reducing, nullptr)) unit->finish_reduce();
  for (const auto& unit : all) unit->end_pass();
}

void RhUnits::abandon() {
  reducing = nullptr;
  for (const auto& unit : all) unit->abandon();
}

std::vector<at::Tensor> RhUnit::views(const at::Tensor& vector) const {
  std::vector<at::Tensor> list;
  for (size_t i = 0; i < shapes.size(); i++) {
    const auto length = c10::multiply_integers(shapes[i]);
    list.push_back(vector.narrow(0, starts[i], length).view(shapes[i]));
  }
  return list;
}

void RhUnit::begin_all_gather() {
  if (units->keeps_whole || gathered.defined()) return;
  c10::AutoGradMode no_grad(false);
  auto own = shard.detach();
  gathered = at::empty({own.numel() * units->num_processes()}, own.options());
  units->collective([&] {
    if (rh_exchanges_in_one_launch(*units->group)) {
      gathering.push_back(units->group->_allgather_base(gathered, own));
      return;
    }
    // Gloo's own operation needs memory for a second vector. A broadcast writes to its place.
    for (int64_t rank = 0; rank < units->num_processes(); rank++) {
      std::vector<at::Tensor> part{gathered.narrow(0, rank * own.numel(), own.numel())};
      if (rank == units->group->getRank()) part[0].copy_(own);
      c10d::BroadcastOptions options;
      options.rootRank = rank;
      gathering.push_back(units->group->broadcast(part, options));
    }
  });
}

at::Tensor RhUnit::finish_all_gather() {
  if (units->keeps_whole) return whole;
  begin_all_gather();
  for (const auto& work : std::exchange(gathering, {})) units->wait(work);
  return std::exchange(gathered, {});
}

void RhUnit::begin_reduce(at::Tensor gradient) {
  if (auto* last = std::exchange(units->reducing, nullptr)) last->finish_reduce();
  c10::AutoGradMode no_grad(false);
  sent = std::move(gradient);
  received = at::empty_like(sent);
  units->collective([&] { exchange = rh_begin_exchange(*units->group, received, sent); });
  units->reducing = this;
}

void RhUnit::finish_reduce() {
  const auto go = std::exchange(sent, {}), come = std::exchange(received, {});
  units->wait(std::exchange(exchange, {}));
  c10::AutoGradMode no_grad(false);
  rh_drop_memory(go);
  auto rows = come.view({units->num_processes(), -1});
  if (units->sums && units->num_processes() > 1) {
    // In the order of the processes, so the bits do not depend on the library.
    auto sum = rows[0] + rows[1];
    for (int64_t process = 2; process < units->num_processes(); process++) sum.add_(rows[process]);
    rows = sum.unsqueeze(0);
    rh_drop_memory(come);
  }
  add_gradients(std::move(rows));
}

void RhUnit::add_gradients(at::Tensor rows) {
  // Several uses are summed within the pass, as the engine does for one process.
  add(pass_gradients, std::move(rows));
}

void RhUnit::end_pass() {
  c10::AutoGradMode no_grad(false);
  if (pass_gradients.defined()) add(gradients, std::exchange(pass_gradients, {}));
}

// Works that still run keep the tensors that they write to.
void RhUnit::abandon() {
  for (auto* tensor : {&gathered, &sent, &received, &pass_gradients, &gradients}) tensor->reset();
  gathering.clear();
  exchange.reset();
}

extern "C" {

int rh_sharding_new(const RhGroup* group, bool keeps_whole, bool sums, RhSharding** out) {
  return rh_guard([&] { *out = new RhSharding{std::make_shared<RhUnits>(group->group, keeps_whole, sums)}; });
}

// Another handle of the same units.
int rh_sharding_share(const RhSharding* sharding, RhSharding** out) {
  return rh_guard([&] { *out = new RhSharding{sharding->units}; });
}

void rh_sharding_free(RhSharding* sharding) {
  delete sharding;
}

// Adds a unit. `like`: tensors with the shapes of the unit's. `starts`: their places in the vector.
// `shard`: the part of this process. `whole`: the vector, or null if it does not stay. For the
// experts of this process the vector is `shard`.
int rh_sharding_add(
    RhSharding* sharding, RhTensors like, size_t count, const int64_t* starts, const at::Tensor* shard, const at::Tensor* whole) {
  return rh_guard([&] {
    auto unit = std::make_unique<RhUnit>();
    unit->units = sharding->units.get();
    for (size_t i = 0; i < count; i++) unit->shapes.push_back(like[i]->sizes().vec());
    unit->starts.assign(starts, starts + count);
    unit->shard = *shard;
    if (whole) unit->whole = *whole;
    RhUnitsInUse(sharding)->all.push_back(std::move(unit));
  });
}

int rh_sharding_begin_pass(RhSharding* sharding) {
  return rh_guard([&] { RhUnitsInUse(sharding)->begin_pass(); });
}

int rh_sharding_end_pass(RhSharding* sharding) {
  return rh_guard([&] { RhUnitsInUse(sharding)->end_pass(); });
}

int rh_sharding_abandon(RhSharding* sharding) {
  return rh_guard([&] { RhUnitsInUse(sharding)->abandon(); });
}

// The gradients of the own part of a unit since the last call: a row for each process, or their
// sum.
int rh_sharding_gradients(RhSharding* sharding, size_t index, at::Tensor** out) {
  return rh_guard([&] {
    const RhUnitsInUse units(sharding);
    auto& unit = *units->all.at(index);
    c10::AutoGradMode no_grad(false);
    auto rows = std::exchange(unit.gradients, {});
    const auto number = units->sums ? 1 : units->num_processes();
    if (!rows.defined()) rows = at::zeros({number, unit.shard.numel()}, unit.shard.options());
    *out = new at::Tensor(std::move(rows));
  });
}

// Calls `consume` with the first error of a collective, or not at all.
void rh_sharding_failure(const RhSharding* sharding, void* context, void (*consume)(void*, const uint8_t*, size_t)) {
  std::string words;
  rh_guard([&] { words = RhUnitsInUse(sharding)->failure; });
  if (!words.empty()) consume(context, reinterpret_cast<const uint8_t*>(words.data()), words.size());
}
}
