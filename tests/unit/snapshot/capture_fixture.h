// CaptureFixture: a client with three tensors, and what a test says of its snapshots.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {

class CaptureFixture : public ClientFixture {
 protected:
  CaptureFixture() {
    AddTensor("a", 100);  // 400 bytes: a gap of 48 behind it
    AddTensor("b", 1000);
    AddTensor("c", 3);
  }
  void ExpectSkipped(uint64_t step, const std::string& why) {
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Outcome::kSkipped);
    EXPECT_THAT(result->reason, testing::HasSubstr(why));
  }
  void ExpectStarted(uint64_t step) {
    const auto result = Snapshot(step);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->outcome, Outcome::kStarted) << result->reason;
  }
  void AwaitCaptured(size_t count = 1) {
    ASSERT_TRUE(RunUntil([&] { return daemon_.Count<Captured>() == count; }));
  }
};

}  // namespace unreft::snapshot
