#include "base/wire_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/unix_socket.h"

namespace unreft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kAnother = 65533;

WireUse Use(bool has_tls = false, bool may_be_open = false) {
  return {.what = "an_option", .tls = "tls_a", .has_tls = has_tls, .may_be_open = may_be_open};
}

class WireAddressTest : public ::testing::Test {
 protected:
  WireAddressTest() {
    char name[] = "/tmp/unreft-wire-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~WireAddressTest() override { std::filesystem::remove_all(root_); }

  std::string Unix(const std::string& name) const { return "unix:" + root_ + "/" + name; }
  static mode_t ModeOf(const std::string& path) {
    struct stat found{};
    EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }
  // A listener that gRPC would have made.
  UniqueFd Listen(const std::string& name) const {
    const sockaddr_un address = *UnixAddress(root_ + "/" + name);
    UniqueFd fd = *NewUnixSocket();
    const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
    EXPECT_EQ(bind(fd.get(), generic, sizeof(address)), 0) << name;
    EXPECT_EQ(listen(fd.get(), 1), 0);
    return fd;
  }

  std::string root_;
};

TEST_F(WireAddressTest, TcpNeedsCertificatesOrLeave) {
  for (const char* address : {"127.0.0.1:0", "0.0.0.0:4400", "[::1]:1", "localhost:1", "host:1"}) {
    for (const absl::Status& status : {PrepareWire(address, Use()), CheckWire(address, Use())}) {
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("an_option"), HasSubstr(address), HasSubstr("tls_a"),
                        HasSubstr("unix:/PATH"), HasSubstr("--insecure")));
    }
    EXPECT_TRUE(IsOpen(address, false));
    EXPECT_FALSE(IsOpen(address, true));
    EXPECT_EQ(PrepareWire(address, Use(true)), absl::OkStatus());
    EXPECT_EQ(PrepareWire(address, Use(false, true)), absl::OkStatus());
    EXPECT_EQ(CheckWire(address, Use(false, true)), absl::OkStatus());
  }
}

TEST_F(WireAddressTest, ASocketFileNeedsNeither) {
  EXPECT_EQ(PrepareWire(Unix("new/a.sock"), Use()), absl::OkStatus());
  EXPECT_EQ(ModeOf(root_ + "/new"), 0700u);
  EXPECT_EQ(CheckWire(Unix("new/a.sock"), Use()), absl::OkStatus());
  EXPECT_TRUE(absl::IsNotFound(CheckWire(Unix("absent/a.sock"), Use())));
  EXPECT_FALSE(IsOpen(Unix("a.sock"), false));
}

TEST_F(WireAddressTest, ADirectoryThatOthersCanWriteToIsRefusedWhateverTheOptions) {
  ASSERT_EQ(chmod(root_.c_str(), 01777), 0);
  for (const WireUse& use : {Use(), Use(true), Use(false, true)}) {
    EXPECT_TRUE(absl::IsPermissionDenied(PrepareWire(Unix("a.sock"), use)));
    EXPECT_TRUE(absl::IsPermissionDenied(CheckWire(Unix("a.sock"), use)));
  }
}

TEST_F(WireAddressTest, APathIsAbsoluteAndFits) {
  EXPECT_TRUE(absl::IsInvalidArgument(PrepareWire("unix:a.sock", Use())));
  EXPECT_TRUE(absl::IsInvalidArgument(PrepareWire("unix:", Use())));
  const std::string longest = "/" + std::string(106, 'a');
  EXPECT_EQ(*SocketFileOf("unix:" + longest), longest);
  EXPECT_EQ(*SocketFileOf("unix://" + longest), longest);
  const absl::Status status = PrepareWire("unix:" + longest + "b", Use());
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("an_option"), HasSubstr("108 bytes"), HasSubstr("limit is 107"),
                    HasSubstr("--run-dir"), HasSubstr(longest)));
}

TEST_F(WireAddressTest, GrpcIsGivenAnyPath) {
  EXPECT_EQ(GrpcName("unix:/run/j-1/a_b.sock"), "unix:/run/j-1/a_b.sock");
  EXPECT_EQ(GrpcName("unix:/a b%2F?#"), "unix:/a%20b%252F%3F%23");
  EXPECT_EQ(GrpcName("unix:///run/a.sock"), "unix:/run/a.sock");
  EXPECT_EQ(GrpcName("10.0.0.1:4400"), "10.0.0.1:4400");
}

TEST_F(WireAddressTest, WhatAKilledProcessLeftIsRemovedAndNothingElse) {
  EXPECT_EQ(RemoveStaleSocket(root_ + "/a.sock"), absl::OkStatus());
  {
    const UniqueFd living = Listen("a.sock");
    EXPECT_TRUE(absl::IsAlreadyExists(RemoveStaleSocket(root_ + "/a.sock")));
  }
  EXPECT_TRUE(std::filesystem::exists(root_ + "/a.sock"));
  EXPECT_EQ(RemoveStaleSocket(root_ + "/a.sock"), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/a.sock"));
  std::ofstream(root_ + "/file") << "precious";
  EXPECT_TRUE(absl::IsAlreadyExists(RemoveStaleSocket(root_ + "/file")));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/file"));
}

// The kernel's word, on which all of this rests.
TEST_F(WireAddressTest, AnotherUserCannotConnect) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chmod(root_.c_str(), 0755), 0);  // even one that others may enter
  const mode_t before = umask(0);
  const UniqueFd open_to_all = Listen("a.sock");
  const absl::StatusOr<UniqueFd> listener = ListenUnixSocket(root_ + "/b.sock");
  umask(before);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto errno_of_another = [&](const std::string& name) {
    const pid_t child = fork();
    if (child == 0) {
      if (setgid(kAnother) != 0 || setuid(kAnother) != 0) _exit(255);
      const UniqueFd fd = *NewUnixSocket();
      _exit(TryConnect(fd, *UnixAddress(root_ + name)));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(errno_of_another("/a.sock"), 0) << "the test would not notice";
  EXPECT_EQ(ModeOf(root_ + "/b.sock"), 0600u);
  EXPECT_EQ(errno_of_another("/b.sock"), EACCES);
}

}  // namespace
}  // namespace unreft
