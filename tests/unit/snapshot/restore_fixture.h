// A client whose daemon has decided that it restores 7:5, and what becomes of a restore that fails.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "tests/unit/snapshot/client_fixture.h"

namespace unreft::snapshot {

class RestoreFixture : public ClientFixture {
 protected:
  RestoreFixture() {
    options_.restore_timeout = std::chrono::seconds(20);
    daemon_.decision = Decision{.kind = DecisionKind::kRestored,
                                .version = {Timeline{7}, Step{5}},
                                .timeline = Timeline{8}};
  }

  static void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                            const std::string& what) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(what));
  }
  // The restore has failed so, which the daemon was told.
  void ExpectFailed(const absl::Status& status, absl::StatusCode code, const std::string& what) {
    ExpectRefused(status, code, what);
    RunFor(std::chrono::milliseconds(10));
    ASSERT_GE(daemon_.Count<RestoreDone>(), 1u);
    const RestoreDone done = daemon_.Got<RestoreDone>().back();
    const absl::Status told = done.status.ToStatus();
    EXPECT_EQ(told.code(), code);
    EXPECT_THAT(std::string(told.message()), testing::HasSubstr(what));
    EXPECT_EQ(done.bad_generation, Generation{0});
  }
};

}  // namespace unreft::snapshot
