// A node's segment and its records on disk, as a daemon that starts takes them over.
//
// The first byte chooses: the bytes are the segment as it is; the segment with the CRCs of both
// bodies mended; or the records "commit", "decision/1" and "pins", one after the other, their
// lengths in the next two bytes.
#include <cstring>

#include "base/check.h"
#include "smp/node_record.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/smp_world.h"
#include "tests/unit/format_testing.h"

namespace unreft::fuzz {
namespace {

constexpr char kAsItIs = 0;
constexpr char kMended = 1;
constexpr char kRecords = 2;

// The last body is the newest in `bytes`.
void UseSegment(std::string_view bytes, bool mend) {
  PageBuffer page(kNodeSegmentBytes, bytes);
  if (mend) {
    for (NodeBody& body : reinterpret_cast<NodeHeader*>(page.span().data())->body) SetBodyCrc(body);
  }
  const auto body = ReadNodeBody(page.span());
  if (!body.ok()) return;
  UNREFT_CHECK(body->decisions <= kDecisionsKept);
  // What is written next is what is read next.
  NodeBody next = *body;
  next.committed_step ^= 1;
  WriteNodeBody(page.span(), next);
  const auto again = ReadNodeBody(page.span());
  UNREFT_CHECK(again.ok() && again->committed_step == next.committed_step);
}

void UseRecords(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const auto first = static_cast<uint8_t>(bytes[0]);
  const auto second = static_cast<uint8_t>(bytes[1]);
  bytes.remove_prefix(2);
  const auto take = [&](size_t count) {
    const std::string taken(bytes.substr(0, count));
    bytes.remove_prefix(taken.size());
    return taken;
  };
  SmpWorld world;
  std::map<std::string, std::string> records;
  records["commit"] = take(first);
  records["decision/00000000000000000001"] = take(second);
  records["pins"] = std::string(bytes);
  world.ReplaceRecords(std::move(records));
  const auto record = world.OpenRecord();
  if (!record.ok()) return;
  const Timeline newest = (*record)->chain().newest();
  world.InTurn([&] {
    UNREFT_CHECK((*record)->OpenTimeline((*record)->committed()) > newest);
    (*record)->SetCommitted({(*record)->chain().newest(), Step{1}}, 1);
  });
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = GoldenFiles("node_header", {&kAsItIs, 1});
  for (std::string& seed : GoldenFiles("node_header", {&kMended, 1})) seeds.push_back(seed);
  // As a node has written them.
  SmpWorld world;
  const auto record = world.OpenRecord();
  PinRecord pins;
  pins.add_pins()->set_owner("evaluation");
  world.InTurn([&] {
    (*record)->OpenTimeline({});
    (*record)->SetCommitted({Timeline{1}, Step{41}}, 4);
    (*record)->SetPins(pins, [](const absl::Status&) {});
  });
  world.Settle();
  std::string commit;
  std::string decision;
  std::string pinned;
  for (const auto& [key, value] : world.records()) {
    (key == "commit" ? commit : key == "pins" ? pinned : decision) = value;
  }
  UNREFT_CHECK(!commit.empty() && !decision.empty() && !pinned.empty());
  seeds.push_back(
      std::string{kRecords, static_cast<char>(commit.size()), static_cast<char>(decision.size())} +
      commit + decision + pinned);
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  if (size == 0) return 0;
  const std::string_view bytes = fuzz::Bytes(data + 1, size - 1);
  if (data[0] == fuzz::kRecords) {
    fuzz::UseRecords(bytes);
  } else {
    fuzz::UseSegment(bytes, data[0] == fuzz::kMended);
  }
  return 0;
}
