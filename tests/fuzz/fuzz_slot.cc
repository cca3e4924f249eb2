// A slot's segment and a rank's control page, from any bytes.
//
// The first byte chooses: the slot as it is, the slot with the CRCs of its bodies mended, or the
// control page.
#include <cstring>

#include "base/check.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/format_testing.h"

namespace unreft::fuzz {
namespace {

constexpr char kAsItIs = 0;
constexpr char kMended = 1;
constexpr char kControl = 2;

// What a reader does with a checked header: every region and block is within the segment.
void UseSlot(std::string_view bytes, bool mend) {
  PageBuffer slot = ExampleSlot();
  std::memcpy(slot.span().data(), bytes.data(), std::min(bytes.size(), slot.span().size()));
  if (mend) {
    auto* header = reinterpret_cast<SlotHeader*>(slot.span().data());
    SetBodyCrc(header->geometry);
    SetBodyCrc(header->grant);
    SetBodyCrc(header->seal);
  }
  auto view = SlotView::Check(slot.span());
  if (!view.ok()) return;
  (void)view->CheckedGrant();
  const auto seal = view->CheckedSeal();
  if (!seal.ok()) return;
  UNREFT_CHECK(seal->manifest_bytes <= view->manifest().size());
  UNREFT_CHECK(seal->extras_bytes <= view->extras().size());
  const uint64_t blocks = BlockCount(seal->data_bytes, view->geometry().block_bytes);
  volatile uint8_t sink = 0;
  for (uint64_t block = 0; block < blocks; ++block) {
    sink = sink + static_cast<uint8_t>(view->block(block).back());
    sink = sink + static_cast<uint8_t>(view->crc_table()[block * sizeof(uint32_t) + 3]);
  }
}

void UseControlPage(std::string_view bytes) {
  PageBuffer page(kControlSegmentBytes, bytes);
  const auto control = CheckControlPage(page.span(), Rank{2});
  if (!control.ok()) return;
  // Every word can be decoded.
  (void)GrantWord::Decode((*control)->grant.load());
  (void)ProgressWord::Decode((*control)->progress.load());
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = GoldenFiles("slot_header", {&kAsItIs, 1});
  for (std::string& seed : GoldenFiles("slot_header", {&kMended, 1})) seeds.push_back(seed);
  for (std::string& seed : GoldenFiles("control_page", {&kControl, 1})) seeds.push_back(seed);
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Draw draw(fuzz::Bytes(data, size));
  const uint8_t how = draw.Byte();
  if (how == fuzz::kControl) {
    fuzz::UseControlPage(draw.Rest());
  } else {
    fuzz::UseSlot(draw.Rest(), how == fuzz::kMended);
  }
  return 0;
}
