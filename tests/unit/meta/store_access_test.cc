// Which keys a client may use: by rule, and of a server that tells clients apart by certificates.
#include "meta/store_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/meta/tls_store_fixture.h"

namespace unreft::meta {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StoreAccessTest, ToTheKeysOfTheJobsThatTheCertificateNames) {
  const StoreAccess access =
      StoreAccess::ToJobsOf({"unreft://job/a", "spiffe://x", "unreft://job/", "unreft://job/b"});
  const auto may = [&](const std::string& begin, const std::string& end = "") {
    return access.Check(KeySpan{begin, end}).ok();
  };
  EXPECT_TRUE(may("unreft/a/commit"));
  EXPECT_TRUE(may("unreft/b/node/3"));
  EXPECT_TRUE(may("unreft/a/", "unreft/a0")) << "all that begin with the first";
  EXPECT_TRUE(may("unreft/a/m", "unreft/a/n"));
  EXPECT_FALSE(may("unreft/a"));
  EXPECT_FALSE(may("unreft/ab/commit"));
  EXPECT_FALSE(may("unreft/c/commit"));
  EXPECT_FALSE(may("other"));
  EXPECT_FALSE(may("unreft/a/", "unreft/b0")) << "from one job's to another's";
  EXPECT_FALSE(may("unreft/a/", std::string(1, '\0')));
  EXPECT_FALSE(may(std::string(1, '\0'), std::string(1, '\0')));
  EXPECT_FALSE(may("unreft//commit"));
  EXPECT_FALSE(StoreAccess::ToJobsOf({}).Check(KeySpan{"unreft//x", ""}).ok());
  EXPECT_TRUE(StoreAccess::ToAll().Check(KeySpan{std::string(1, '\0'), std::string(1, '\0')}).ok());
  EXPECT_TRUE(StoreAccess::ToAll().CheckAll("a compaction").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(access.CheckAll("a compaction")));
}

TEST(StoreAccessTest, EachKeyOfATxnCounts) {
  const StoreAccess access = StoreAccess::ToJobsOf({"unreft://job/a"});
  const auto check = [&](auto add) {
    StoreTxn txn;
    txn.compares.push_back({.key = "unreft/a/x"});
    txn.then.push_back(StorePut{"unreft/a/x", "", {}});
    txn.otherwise.push_back(StoreRange{.span = {"unreft/a/", "unreft/a0"}});
    add(txn);
    return access.Check(txn);
  };
  EXPECT_TRUE(check([](StoreTxn&) {}).ok());
  const KeySpan probe{std::string(1, '\0'), ""};
  EXPECT_TRUE(check([&](StoreTxn& txn) { txn.then.push_back(StoreRange{.span = probe}); }).ok());
  EXPECT_FALSE(check([&](StoreTxn& txn) { txn.then.push_back(StoreDelete{probe}); }).ok());
  const KeySpan other{"unreft/b/x", ""};
  for (const absl::Status& status : {
           check([&](StoreTxn& txn) { txn.compares.push_back({.key = other.begin}); }),
           check([&](StoreTxn& txn) { txn.then.push_back(StorePut{other.begin, "", {}}); }),
           check([&](StoreTxn& txn) { txn.then.push_back(StoreDelete{other}); }),
           check([&](StoreTxn& txn) { txn.otherwise.push_back(StoreRange{.span = other}); }),
       }) {
    EXPECT_TRUE(absl::IsPermissionDenied(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("'unreft/b/x'"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("certificate is of [a]"));
  }
}

class ServerAccessTest : public TlsStoreTest {
 protected:
  ServerAccessTest() { StartServer(); }
};

TEST_F(ServerAccessTest, ACertificateOfAnotherJobChangesNothingOfThisOne) {
  ConnectAs("a");
  EXPECT_EQ(Put("unreft/a/commit"), absl::OkStatus());
  ConnectAs("b");
  const absl::Status status = Put("unreft/a/commit");
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("certificate is of [b]"));
  Watch("unreft/a/commit");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Put("unreft/b/commit"), absl::OkStatus());
  EXPECT_THAT(heard_, IsEmpty());
  ConnectAs("a");
  Watch("unreft/a/commit");
  EXPECT_TRUE(world_.RunUntil([&] { return !heard_.empty(); }));
  EXPECT_THAT(heard_, ElementsAre("unreft/a/commit"));
}

TEST_F(ServerAccessTest, AKeyThatOthersCanReadIsRefused) {
  MetaTlsOptions files = FilesOf("c");
  ASSERT_EQ(std::system(("chmod 644 " + files.key).c_str()), 0);
  for (const absl::Status& status :
       {EtcdKv::Create({.endpoints = "127.0.0.1:1", .tls = files}, world_.executor(0)).status(),
        EmbeddedServer::Start({.listen = "127.0.0.1:0", .tls = files}, world_.executor(0), *engine_)
            .status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("with mode 0644"));
  }
}

}  // namespace
}  // namespace unreft::meta
