// What a node answers about slabs when it guards nothing of others.

#include "smp/protect/slab_server.h"

#include <gmock/gmock.h>

#include "smp/job/cluster_records.h"
#include "tests/unit/smp/group_fixture.h"

namespace unreft::smp {
namespace {

using testing::HasSubstr;

class SlabServerTest : public GroupFixture {
 protected:
  SlabServerTest() : GroupFixture(2, 0) {
    StartOther(kOther, [](Peers&) {});
    StartOwn();
    InTurn([&] { server_ = std::make_unique<SlabServer>(*state_, *own_peers_); });
  }
  ~SlabServerTest() override {
    InTurn([&] { server_.reset(); });
  }

  absl::StatusOr<std::string> AskOf(NodeSlot slot) {
    MetaRequest request;
    SetVersion(kVersion, request);
    request.set_slot(slot.value);
    return Call(kOther, "meta", request.SerializeAsString());
  }
  absl::Status ReadOf(ReadRequest::Kind kind) {
    ReadRequest request;
    SetVersion(kVersion, request);
    request.set_kind(kind);
    request.set_blocks(1);
    return Read(kOther, request.SerializeAsString());
  }

  static constexpr NodeSlot kOther{1};
  std::unique_ptr<SlabServer> server_;
};

// In a job without parities nobody answered, and a restore asked for ever.
TEST_F(SlabServerTest, OwnSlabsAreDescribed) {
  const auto reply = AskOf(NodeSlot{0});
  ASSERT_TRUE(reply.ok()) << reply.status();
  MetaReply parsed;
  EXPECT_TRUE(parsed.ParseFromString(*reply));
  EXPECT_EQ(parsed.slabs_size(), 0);
}

TEST_F(SlabServerTest, OfOthersNothingIsKept) {
  const absl::Status status = AskOf(NodeSlot{1}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no description of node 1 of version 1:9"));
}

TEST_F(SlabServerTest, ReadsOfWhatIsNotThereSaySo) {
  const absl::Status data = ReadOf(ReadRequest::DATA);
  EXPECT_TRUE(absl::IsNotFound(data)) << data;
  EXPECT_THAT(std::string(data.message()), HasSubstr("no slab of rank 0 of version 1:9"));
  for (const auto kind : {ReadRequest::STORED_PARITY, ReadRequest::FRESH_PARITY}) {
    const absl::Status parity = ReadOf(kind);
    EXPECT_TRUE(absl::IsNotFound(parity)) << parity;
    EXPECT_THAT(std::string(parity.message()), HasSubstr("node 0 guards nothing"));
  }
}

TEST_F(SlabServerTest, AReadThatDoesNotParseIsRefused) {
  const absl::Status status = Read(kOther, "\xff\xff");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace unreft::smp
