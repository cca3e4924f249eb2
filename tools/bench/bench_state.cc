#include "tools/bench/bench_state.h"

#include <unistd.h>

#include <cstring>
#include <future>

#include "base/check.h"
#include "base/crc32c.h"
#include "layout/tensor_table.h"
#include "snapshot/given_tensors.h"

namespace unreft::bench {
namespace {

constexpr uint32_t kBlockBytes = 1 << 20;
constexpr uint64_t kChunkBytes = uint64_t{64} << 20;  // of one Reserve

// The tensors of one layer of a transformer, in parts of its bytes.
struct Part {
  const char* name;
  double share;  // of the layer; below 1e-3: so many KiB instead
  uint64_t kib = 0;
};
constexpr Part kLayer[] = {{"qkv", 3.0 / 12}, {"proj", 1.0 / 12}, {"fc1", 4.0 / 12},
                           {"fc2", 4.0 / 12}, {"ln1", 0, 8},      {"ln2", 0, 8},
                           {"bias", 0, 24}};
constexpr int kLayers = 16;

// As PyTorch's allocator: memcpy is slower where lines of source and target begin apart.
constexpr size_t kTensorAlignment = 64;

std::byte* AlignedMemory(uint64_t bytes) {
  const uint64_t whole = (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  void* const memory = std::aligned_alloc(kTensorAlignment, whole);
  UNREFT_CHECK(memory != nullptr, "needed {} bytes for a tensor", whole);
  return static_cast<std::byte*>(memory);
}

uint64_t ElementsOf(const Part& part, uint64_t layer_bytes) {
  if (part.kib > 0) return part.kib * 1024 / 4;
  return static_cast<uint64_t>(part.share * static_cast<double>(layer_bytes)) / 4;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchState>> BenchState::Make(uint64_t data_bytes) {
  std::unique_ptr<BenchState> state(
      new BenchState(SegmentPrefix(fmt::format("bench-{}", getpid()), 0)));
  state->MakeTensors(data_bytes);
  if (absl::Status status = state->MakeSlot(); !status.ok()) return status;
  state->waiting_ = state->NewCapture(/*helping=*/false);
  state->helping_ = state->NewCapture(/*helping=*/true);
  return state;
}

BenchState::BenchState(std::string prefix) : prefix_(std::move(prefix)) {}

BenchState::~BenchState() {
  thread_.Join();
  (void)segments_.Remove(prefix_ + "control");  // made or not
  (void)segments_.Remove(prefix_ + "slot0");
}

void BenchState::MakeTensors(uint64_t data_bytes) {
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Part& part : kLayer) {
      const uint64_t elements = ElementsOf(part, data_bytes / kLayers);
      std::byte* data = memory_.emplace_back(AlignedMemory(elements * 4)).get();
      for (uint64_t i = 0; i < elements; ++i) {
        const uint64_t value = (i + memory_.size()) * 0x9e3779b97f4a7c15;
        std::memcpy(data + i * 4, &value, 4);
      }
      tensors_.push_back({.spec = {.name = fmt::format("layer{}.{}", layer, part.name),
                                   .global_shape = {elements},
                                   .offset = {0},
                                   .extent = {elements}},
                          .data = data});
    }
  }
  table_ = *layout::TensorTable::Create(snapshot::SpecsOf(tensors_));
  for (const snapshot::BoundTensor& tensor : tensors_) shards_.push_back({tensor.data});
  layout_ = snapshot::CaptureLayout::Make(table_, shards_, {.block_bytes = kBlockBytes});
  bytes_ = layout_->plan().data_bytes();
}

absl::Status BenchState::MakeSlot() {
  auto control = segments_.Create(prefix_ + "control", kControlSegmentBytes);
  if (!control.ok()) return control.status();
  control_segment_ = *std::move(control);
  absl::Status status = control_segment_->Reserve(0, kControlSegmentBytes);
  if (!status.ok()) return status;
  control_ = &FormatControlPage(control_segment_->bytes(), Rank{0});

  const SlotGeometry geometry = MakeSlotGeometry(SlotId{0}, kBlockBytes, 4096, 4096, bytes_);
  const uint64_t bytes = SlotSegmentBytes(geometry);
  auto segment = segments_.Create(prefix_ + "slot0", bytes);
  if (!segment.ok()) return segment.status();
  segment_ = *std::move(segment);
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
    status = segment_->Reserve(at, std::min(kChunkBytes, bytes - at));
    if (!status.ok()) return status;
  }
  view_ = FormatSlot(segment_->bytes(), geometry);
  const Registered registered{
      .control_segment = prefix_ + "control",
      .block_bytes = kBlockBytes,
      .slots = {{SlotId{0}, prefix_ + "slot0", geometry.extras_offset, geometry.extras_capacity,
                 geometry.data_offset, geometry.data_capacity}}};
  auto slots = snapshot::MappedSlots::Open(segments_, Rank{0}, registered);
  if (!slots.ok()) return slots.status();
  slots_ = *std::move(slots);
  return absl::OkStatus();
}

std::unique_ptr<snapshot::Capture> BenchState::NewCapture(bool helping) {
  snapshot::CaptureOptions options;
  options.fence_helps = helping;
  snapshot::Capture::Events& events = *this;
  auto capture =
      std::make_unique<snapshot::Capture>(thread_.executor(), copier_, options, board_, events);
  InTurn([&] {
    capture->SetTimeline(Timeline{1});
    capture->Bind(table_, shards_, snapshot::EachByItself(shards_.size()));
    capture->Install(layout_, slots_);
  });
  return capture;
}

void BenchState::InTurn(std::function<void()> body) {
  std::promise<void> done;
  thread_.executor().Post([&] {
    body();
    done.set_value();
  });
  done.get_future().get();
}

void BenchState::Grant() {
  const Generation generation{++generation_};
  SlotGrant grant;
  grant.generation = generation.value;
  grant.world = 1;
  SetBodyCrc(grant);
  view_->header().grant = grant;
  view_->set_state(generation, SlotState::kCapturing);
  control_->grant.store(GrantWord{GrantState::kGranted, SlotId{0}, generation}.Encode());
}

void BenchState::OnGaveUp(GaveUp gave_up) {
  UNREFT_CHECK(false, "a capture was given up: {}", gave_up.reason);
}

void BenchState::OnSkipped(Skipped skipped) {
  UNREFT_CHECK(false, "a capture was skipped: {}", skipped.reason);
}

std::byte* BenchState::slab(size_t tensor) const {
  return slots_->Find(SlotId{0})->data().data() + layout_->plan().parts()[tensor].slab_offset;
}

std::span<const std::byte> BenchState::slab() const {
  return slots_->Find(SlotId{0})->data().first(layout_->padded_bytes());
}

void BenchState::CaptureOnce(bool helping) {
  Grant();
  snapshot::Capture& capture = helping ? *helping_ : *waiting_;
  const auto result = capture.Snapshot(Step{generation_}, {}, nullptr);
  UNREFT_CHECK(result.ok() && result->outcome == snapshot::Outcome::kStarted);
  capture.WaitForCopies();
}

void BenchState::Seal() {
  bool told = false;
  while (!told) InTurn([&] { told = captured_.generation.value == generation_; });
  SlotSeal seal;
  seal.generation = generation_;
  seal.timeline = captured_.version.timeline.value;
  seal.step = captured_.version.step.value;
  seal.data_bytes = captured_.data_bytes;
  const uint64_t blocks = BlockCount(bytes_, kBlockBytes);
  std::vector<uint32_t> crcs;
  for (uint64_t i = 0; i < blocks; ++i) crcs.push_back(Crc32c(view_->block(i)));
  const auto table = std::as_bytes(std::span(crcs));
  std::memcpy(view_->crc_table().data(), table.data(), table.size());
  seal.crc_table_crc = Crc32c(table);
  SetBodyCrc(seal);
  view_->header().seal = seal;
  view_->set_state(Generation{generation_}, SlotState::kSealed);
}

WireSlot BenchState::Where() const {
  return {SlotId{0}, Generation{generation_}, prefix_ + "slot0"};
}

void BenchState::MapAhead() {
  warm_slots_.Expect({Where()});
  while (warm_slots_.MapSome(snapshot::ClientOptions{}.map_ahead_chunk_bytes)) {
  }
}

void BenchState::RestoreOnce() {
  snapshot::RestorePlan plan{.sources = {{.slot = Where()}}};
  for (const layout::CapturedPart& part : layout_->plan().parts()) {
    plan.pieces.push_back(
        {.target = part.tensor, .source_offset = part.slab_offset, .bytes = part.bytes});
  }
  const snapshot::RestoreReport report =
      snapshot::Restorer(warm_slots_, copier_, 1).Read(plan, tensors_);
  UNREFT_CHECK(report.status.ok(), "{}", report.status.ToString());
}

void BenchState::MapAndCopyOnce() {
  const auto segment = segments_.Open(prefix_ + "slot0", Access::kReadOnly);
  UNREFT_CHECK(segment.ok(), "{}", segment.status().ToString());
  const std::byte* data = (*segment)->bytes().data() + view_->geometry().data_offset;
  for (const layout::CapturedPart& part : layout_->plan().parts()) {
    std::memcpy(tensors_[part.tensor].data, data + part.slab_offset, part.bytes);
  }
}

bool BenchState::SlabEqualsTensors() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (std::memcmp(slab(i), tensors_[i].data, ShardBytes(tensors_[i].spec)) != 0) return false;
  }
  return true;
}

}  // namespace unreft::bench
