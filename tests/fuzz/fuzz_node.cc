// A node's segment and its records on disk, as a daemon that starts takes them over.
//
// The first byte chooses: the bytes are the segment as it is; the segment with the CRCs of both
// bodies mended; or the records "commit", "decision/1" and "pins", one after the other, their
// lengths in the next two bytes.
#include "base/check.h"
#include "base/wire.h"
#include "smp/job/earlier_records.h"
#include "smp/job/node_record.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/format_testing.h"
#include "tests/unit/smp/earlier_keys.h"
#include "tests/unit/smp/smp_fixture.h"

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

class World final : public smp::SmpFixture {
 public:
  using SmpFixture::InTurn;
  using SmpFixture::OpenRecord;
  using SmpFixture::OpenTimeline;

  // Before anything has read them.
  void ReplaceRecords(std::map<std::string, std::string> records) {
    records_.reset();
    disk_.Replace(std::move(records));
    records_ = *FakeRecordStore::Open(disk_, *executor_);
  }

 private:
  void TestBody() override {}
};

void UseRecords(Draw& draw) {
  const uint8_t commit_bytes = draw.Byte();
  const uint8_t decision_bytes = draw.Byte();
  std::map<std::string, std::string> records;
  records[smp::kEarlierCommitKey] = draw.Take(commit_bytes);
  records[smp::kEarlierDecisionKey] = draw.Take(decision_bytes);
  records["pins"] = draw.Rest();
  World world;
  world.ReplaceRecords(std::move(records));
  const auto record = world.OpenRecord();
  if (!record.ok()) return;
  const Timeline newest = (*record)->chain().newest();
  world.InTurn([&] {
    (void)smp::EarlierRecords(**record, NodeSlot{0});
    UNREFT_CHECK(world.OpenTimeline(**record, (*record)->committed()) > newest);
    (*record)->SetCommitted({(*record)->chain().newest(), Step{1}}, 1);
  });
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = GoldenFiles("node_header", {&kAsItIs, 1});
  for (std::string& seed : GoldenFiles("node_header", {&kMended, 1})) seeds.push_back(seed);
  // As an earlier release has written them.
  const std::string commit = EncodeWire(smp::EarlierCommit{1, {Timeline{1}, Step{41}}, 4});
  const std::string decision = EncodeWire(smp::EarlierDecision{1, Timeline{1}, Version{}});
  PinRecord pins;
  pins.add_pins()->set_owner("evaluation");
  seeds.push_back(
      std::string{kRecords, static_cast<char>(commit.size()), static_cast<char>(decision.size())} +
      commit + decision + pins.SerializeAsString());
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Draw draw(fuzz::Bytes(data, size));
  const uint8_t how = draw.Byte();
  if (how == fuzz::kRecords) {
    fuzz::UseRecords(draw);
  } else {
    fuzz::UseSegment(draw.Rest(), how == fuzz::kMended);
  }
  return 0;
}
