// What a trainer says to the daemon: any frames after a good Hello, and any words on its control
// page. A connection that the daemon ends is made again.
//
// A frame: its type, its payload's length in two bytes, its payload. The type 255: which word of
// the page, and its eight bytes.
#include <cstring>
#include <optional>

#include "base/control_page.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/format_testing.h"

namespace unreft::fuzz {
namespace {

constexpr uint8_t kWord = 255;

class Trainer final : public Daemon {
 public:
  Trainer() { SayHello(); }

  void Run(std::string_view bytes) {
    Draw draw(bytes);
    // After each the whole node runs for a while.
    for (int frames = 0; !draw.empty() && frames < 64; ++frames) {
      const uint8_t type = draw.Byte();
      if (type != kWord) {
        SayFrame(Frame{type, draw.LongText()});
        continue;
      }
      const uint8_t which = draw.Byte();
      uint64_t value = 0;
      const std::string word = draw.Take(sizeof(value));
      std::memcpy(&value, word.data(), word.size());
      SetWord(which, value);
    }
  }
  void End() {
    table_.End(life_);
    Settle(std::chrono::seconds(60));
  }
  Timeline timeline() const { return node_->state().record->chain().newest(); }
  uint64_t sealed() const { return node_->state().counters.slots_sealed; }

 private:
  void SayFrame(Frame frame) {
    if (!Say(std::move(frame))) SayHello();
    Settle(std::chrono::milliseconds(200));
    for (const Frame& sent : sent_) {
      const auto registered = FromFrame<Registered>(sent);
      if (registered.ok() && !registered->control_segment.empty()) {
        control_ = registered->control_segment;
      }
    }
    sent_.clear();
  }
  void SetWord(uint8_t which, uint64_t value) {
    auto segment = segments_.Open(control_, Access::kReadWrite);
    if (!segment.ok()) return;
    auto* page = reinterpret_cast<ControlPage*>((*segment)->bytes().data());
    (which % 2 == 0 ? page->grant : page->progress).store(value);
  }
  void SayHello() {
    Connect(life_.pid);
    Say(ToFrame(Hello{.job = "job", .world = 1, .attempt = Attempt{1}, .life = life_}));
  }

  const ProcessLife life_ = table_.Start();
  std::string control_;
};

template <typename Message>
std::string Input(const Message& message) {
  return static_cast<char>(Message::kType) + LongTextOf(ToFrame(message).payload);
}

std::string WordInput(uint8_t which, uint64_t value) {
  return std::string{static_cast<char>(kWord), static_cast<char>(which)} +
         std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::vector<TensorSpec> specs = {Whole("w", {40}), Whole("step", {})};
  const std::vector<WireTensor> tensors = {{specs[0]}, {specs[1]}};
  const auto table = layout::TensorTable::Create(specs);
  const auto plan = layout::CapturePlan::Make(*table, layout::CaptureMode::kSharded);
  const std::string restore = Input(RestoreRequest{1});
  Trainer restoring;
  restoring.Run(restore);
  const Version version{restoring.timeline(), Step{1}};
  const SlotId slot{0};
  const Generation generation{(1 << 28) + 1};  // the first of the first process
  std::string life = restore + Input(Register{2, tensors, 100});
  life += WordInput(0, GrantWord{GrantState::kClaimed, slot, generation}.Encode());
  life += Input(Claimed{slot, generation, version});
  life += WordInput(1, ProgressWord{4, 1}.Encode()) + Input(Progress{slot, generation});
  std::string captured =
      life +
      Input(Captured{slot, generation, version, plan.digest(), plan.data_bytes(), 0, {}, {}});
  captured += Input(RestoreRequest{3}) + Input(PlanRequest{4, tensors});
  Trainer trainer;
  trainer.Run(captured);
  UNREFT_CHECK(trainer.sealed() == 1, "the seed does not get as far as it did");
  std::vector<std::string> seeds = {captured, life + Input(Skipped{version, "no slot"}),
                                    life + Input(Skipped{{version.timeline, Step{0}}, "no slot"}),
                                    life + Input(GaveUp{slot, generation, version, "x", 900})};
  std::string all = life;
  ForEachExampleMessage([&](const auto& message) { all += Input(message); });
  seeds.push_back(all);
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Trainer trainer;
  trainer.Run(fuzz::Bytes(data, size));
  trainer.End();
  return 0;
}
