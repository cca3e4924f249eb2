// One example of everything that is persistent or crosses a process: what the golden files hold,
// and what the robustness tests and the fuzzers' first inputs start from.
#pragma once

#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/control_page.h"
#include "base/framing.h"
#include "base/guard_header.h"
#include "base/node_header.h"
#include "base/session_frames.h"
#include "base/slot_header.h"
#include "layout/capture_plan.h"
#include "layout/manifest.h"
#include "layout/tensor_table.h"
#include "tests/unit/layout_testing.h"

namespace unreft {

// Bytes where a segment could lie: at the beginning of a page.
class PageBuffer {
 public:
  explicit PageBuffer(size_t bytes) : bytes_(bytes, std::byte{0}) {}
  PageBuffer(size_t bytes, std::string_view head) : PageBuffer(bytes) {
    std::memcpy(bytes_.data(), head.data(), std::min(head.size(), bytes));
  }
  std::span<std::byte> span() { return bytes_; }
  std::string Head(size_t bytes) const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes};
  }

 private:
  template <typename T>
  struct PageAllocator {
    using value_type = T;
    PageAllocator() = default;
    template <typename U>
    explicit PageAllocator(const PageAllocator<U>& /*other*/) {}
    T* allocate(size_t n) {
      return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{kSegmentPage}));
    }
    void deallocate(T* p, size_t /*n*/) { ::operator delete(p, std::align_val_t{kSegmentPage}); }
    bool operator==(const PageAllocator&) const = default;
  };

  std::vector<std::byte, PageAllocator<std::byte>> bytes_;
};

inline RandomId ExampleId(uint8_t first) {
  RandomId id;
  for (size_t i = 0; i < id.size(); ++i) id[i] = static_cast<uint8_t>(first + i);
  return id;
}

inline SlotGeometry ExampleGeometry() {
  SlotGeometry geometry = MakeSlotGeometry(SlotId{3}, 256, 1000, 500, 3000);
  geometry.boot_id = ExampleId(0x10);
  geometry.incarnation = ExampleId(0x20);
  return geometry;
}

// Sealed: geometry, grant and seal are all there.
inline PageBuffer ExampleSlot() {
  PageBuffer buffer(SlotSegmentBytes(ExampleGeometry()));
  SlotView view = FormatSlot(buffer.span(), ExampleGeometry());
  const Generation generation{7};
  view.header().grant = {.generation = generation.value,
                         .rank = 2,
                         .world = 4,
                         .pid = 4711,
                         .start_time = 123456,
                         .attempt = 1,
                         .timeline = 5};
  SetBodyCrc(view.header().grant);
  view.set_state(generation, SlotState::kCapturing);
  view.header().seal = {.generation = generation.value,
                        .timeline = 5,
                        .step = 41,
                        .layout_digest = 0x1122334455667788,
                        .data_bytes = 2900,
                        .extras_bytes = 77,
                        .manifest_bytes = 321,
                        .extras_crc = 0xe1,
                        .manifest_crc = 0xe2,
                        .crc_table_crc = 0xe3};
  SetBodyCrc(view.header().seal);
  view.set_state(generation, SlotState::kSealed);
  return buffer;
}

inline GuardGeometry ExampleGuardGeometry() {
  GuardGeometry geometry = MakeGuardGeometry(5, 256, 2000, 2, 3, 10);
  geometry.boot_id = ExampleId(0x10);
  geometry.incarnation = ExampleId(0x20);
  return geometry;
}

// Complete: geometry, grant and seal are all there.
inline PageBuffer ExampleGuard() {
  PageBuffer buffer(GuardSegmentBytes(ExampleGuardGeometry()));
  GuardView view = FormatGuard(buffer.span(), ExampleGuardGeometry());
  view.header().grant = {.generation = 7, .timeline = 5, .step = 41, .positions = 9, .sources = 3};
  SetBodyCrc(view.header().grant);
  view.header().seal = {.generation = 7,
                        .record_bytes = 1234,
                        .record_crc = 0xe1,
                        .parity_crc_table_crc = 0xe2,
                        .input_crc_table_crc = 0xe3};
  SetBodyCrc(view.header().seal);
  view.set_state(Generation{7}, GuardState::kComplete);
  return buffer;
}

inline NodeBody ExampleNodeBody() {
  NodeBody body;
  body.decisions = 2;
  body.boot_id = ExampleId(0x10);
  body.incarnation = ExampleId(0x20);
  body.session = 9;
  body.committed_timeline = 2;
  body.committed_step = 41;
  body.committed_world = 4;
  body.capture_began = 1;
  body.decision[0] = {1, 0, 0};
  body.decision[1] = {2, 1, 40};
  return body;
}

// Both bodies are written.
inline PageBuffer ExampleNode() {
  PageBuffer buffer(kNodeSegmentBytes);
  NodeBody earlier = ExampleNodeBody();
  earlier.committed_step = 40;
  WriteNodeBody(buffer.span(), earlier);
  WriteNodeBody(buffer.span(), ExampleNodeBody());
  return buffer;
}

inline PageBuffer ExampleControl() {
  PageBuffer buffer(kControlSegmentBytes);
  ControlPage& page = FormatControlPage(buffer.span(), Rank{2});
  page.grant.store(GrantWord{GrantState::kClaimed, SlotId{3}, Generation{7}}.Encode());
  page.capture_from.store(42);
  page.progress.store(ProgressWord{11, 7}.Encode());
  return buffer;
}

inline layout::SlotManifest ExampleManifest() {
  layout::SlotManifest manifest;
  manifest.job = "gpt";
  manifest.version = {Timeline{5}, Step{41}};
  manifest.parent = {Timeline{4}, Step{17}};
  manifest.rank = Rank{2};
  manifest.world = 4;
  manifest.attempt = Attempt{1};
  manifest.block_bytes = 256;
  manifest.extras_bytes = 77;
  manifest.tensors = {Spec("w", {4, 1024}, {2, 0}, {2, 1024}, 1, 2),
                      Whole("step", {}, 0, 1, Dtype::kInt64),
                      Whole("rng", {5}, 2, 4, Dtype::kUint8)};
  manifest.tensors[2].is_volatile = true;
  // As it was written: how plans are made may change, what is stored stays readable.
  manifest.layout_digest = 0x26b808c94401666b;
  manifest.capture_mode = layout::CaptureMode::kSharded;
  manifest.data_bytes = 4165;
  manifest.parts = {{0, 4096, 4096, 0}, {1, 0, 8, 4096}, {2, 0, 5, 4160}};
  return manifest;
}

// Calls f(message) with one example of every message of the local session.
template <typename F>
void ForEachExampleMessage(F f) {
  const std::vector<WireTensor> tensors = {{Spec("w", {4, 8}, {2, 0}, {2, 8}, 1, 2)},
                                           {Whole("step", {}, 0, 1, Dtype::kInt64)}};
  const WireSlot slot{SlotId{3}, Generation{7}, "/unreft.gpt.0.slot3"};
  const Version version{Timeline{5}, Step{41}};
  const WireStatus lost(absl::DataLossError("slot 3: block 5 does not verify"));
  f(Hello{.job = "gpt",
          .rank = Rank{2},
          .world = 4,
          .attempt = Attempt{1},
          .life = {4711, 123456},
          .timeline = Timeline{5},
          .client_version = "0.1.0"});
  f(Welcome{ProcessNumber{9}, NodeSlot{0}, Timeline{5}, 1 << 20, "0.1.0", {slot}, 26});
  f(Refused{absl::PermissionDeniedError("uid 1000 is not 1001"), true});
  f(RestoreRequest{12, true, true, Step{40}});
  const WireExtras extras{slot, "extras", 0xe1, true};
  f(Decision{12, DecisionKind::kRestored, absl::OkStatus(), version, Timeline{6}, tensors, extras,
             4, "/mnt/ckpt/timeline-5-step-41"});
  f(PlanRequest{13, tensors, true, {0}});
  f(Plan{13,
         absl::OkStatus(),
         {slot},
         {{0, 1, 4096, 64, 512}, {0, 0, 8192, 0, 64}},
         "/unreft.gpt.0.staging2",
         1 << 20,
         576,
         {{Rank{2}, slot}, {Rank{5}, {}}},
         3,
         1 << 16});
  f(RestoreDone{lost, SlotId{3}, Generation{7}});
  f(Register{14, tensors, 5000});
  f(Registered{.request = 14,
               .status = absl::OkStatus(),
               .control_segment = "/unreft.gpt.0.ctl2",
               .capture_mode = 1,
               .layout_digest = 0x1122334455667788,
               .block_bytes = 1 << 20,
               .replica_check_every = 100,
               .slots = {{SlotId{3}, "/unreft.gpt.0.slot3", 12288, 8192, 20480, 1 << 20}}});
  f(Claimed{SlotId{3}, Generation{7}, version});
  f(Progress{SlotId{3}, Generation{7}});
  f(Captured{
      SlotId{3}, Generation{7}, version, 0x1122334455667788, 2900, 77, {0xd1, 0xd2}, {0xb1}});
  f(Skipped{version, "no slot is granted"});
  f(GaveUp{SlotId{3}, Generation{7}, version, "extras need 9000 bytes", 9000});
  f(VersionState{version, VersionPhase::kAbandoned, "rank 1 skipped it"});
  f(AdminRequest{"versions", "{\"limit\":3}"});
  f(AdminReply{absl::OkStatus(), "[]"});
  f(Staged{13, absl::OkStatus(), 4096, 1024, 0xc5, {{0, 1, 512, 576, 448}}, true, 1, 7});
  f(StagedDone{13, 4096, absl::DataLossError("block needs CRC c5")});
  f(EverCommittedRequest{15});
  f(EverCommitted{15, absl::UnavailableError("the meta store was not read"), true});
  f(Obstacle{"rank 2 of 4 has not registered"});
  f(PlanPage{13, {{0, 1, 4096, 64, 512}, {1, 0, 8192, 0, 64, 4, 256, 128}}});
  f(ExtrasRequest{16, Rank{3}});
  f(Extras{16, absl::OkStatus(), extras});
}
inline constexpr size_t kMessageTypes = 26;
static_assert(kMessageTypes == static_cast<size_t>(kNewestFrameType));

// A frame as it lies in the stream.
inline std::string StreamBytes(const Frame& frame) {
  const FrameHeader header = EncodeFrameHeader(frame);
  return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + frame.payload;
}

}  // namespace unreft
