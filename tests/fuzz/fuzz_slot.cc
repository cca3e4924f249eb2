// Headers in shared memory: a slot's, a node's and a control page, from any bytes.
#include <cstddef>
#include <cstdint>

#include "tests/unit/format_testing.h"

using namespace unreft;  // NOLINT(google-build-using-namespace): one function

namespace {

void UseSlot(std::string_view bytes, bool mend_crc) {
  PageBuffer slot = ExampleSlot();
  std::memcpy(slot.span().data(), bytes.data(), std::min(bytes.size(), slot.span().size()));
  auto* header = reinterpret_cast<SlotHeader*>(slot.span().data());
  if (mend_crc) {
    SetBodyCrc(header->geometry);
    SetBodyCrc(header->seal);
  }
  auto view = SlotView::Check(slot.span());
  if (!view.ok()) return;
  (void)view->CheckedClaim();
  // What a reader does with a checked header: every region and block must be within the segment.
  size_t sum = view->manifest().size() + view->crc_table().size() + view->extras().size();
  const auto seal = view->CheckedSeal();
  if (!seal.ok()) return;
  const uint64_t blocks = BlockCount(seal->data_bytes, view->geometry().block_bytes);
  for (uint64_t block = 0; block < blocks; ++block) {
    sum += static_cast<size_t>(view->block(block).back());
    sum += static_cast<size_t>(view->crc_table()[block * sizeof(uint32_t) + 3]);
  }
  volatile size_t sink = sum;
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  UseSlot(bytes, false);
  UseSlot(bytes, true);
  PageBuffer page(kNodeSegmentBytes, bytes);
  (void)ReadNodeBody(page.span());
  (void)CheckControlPage(page.span(), Rank{2});
  return 0;
}
