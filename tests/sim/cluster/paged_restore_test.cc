// A job whose nodes cannot say in one message what their slabs are (docs/protocol.md, rule 33).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/sim/cluster/reshaping.h"

namespace unreft::sim {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPageBytes = 4096;
// Of a page around its bytes.
constexpr size_t kWrapping = 32;

// Of 96 rows a layer: the CRC table of a slab alone is larger than a message may be.
ReshapingOptions Narrow(uint64_t page_bytes) {
  ReshapingOptions options;
  options.nodes = 4;
  options.rows = 96;
  options.with_loss = true;
  options.answer_page_bytes = page_bytes;
  options.message_bytes_max = kPageBytes + kWrapping;
  return options;
}

// Each slab is described to who guards it, before the loss, and to all who restore, after it: that
// of the lost node by a guard, and what of it is wanted is decoded.
TEST(PagedRestoreTest, AnotherWorldRestoresInPagesWithANodeLost) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    ReshapingOptions options = Narrow(kPageBytes);
    options.seed = seed;
    const auto reads = Reshape(options);
    ASSERT_TRUE(reads.ok()) << "seed " << seed << ": " << reads.status();
    EXPECT_GT(reads->lost, 0);
    EXPECT_GE(reads->read, reads->needed);
  }
}

TEST(PagedRestoreTest, ManySmallPagesDoAsWell) {
  const auto reads = Reshape(Narrow(100));
  ASSERT_TRUE(reads.ok()) << reads.status();
}

TEST(PagedRestoreTest, InOneMessageThereWouldNotEvenBeACommit) {
  const auto reads = Reshape(Narrow(uint64_t{8} << 20));
  EXPECT_THAT(std::string(reads.status().message()), HasSubstr("the job never commits"));
}

}  // namespace
}  // namespace unreft::sim
