#include "base/private_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/lock_file.h"

namespace unreft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kAnother = 65533;

class PrivateDirectoryTest : public ::testing::Test {
 protected:
  PrivateDirectoryTest() {
    char name[] = "/tmp/unreft-private-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~PrivateDirectoryTest() override { std::filesystem::remove_all(root_); }

  std::string At(const std::string& name) const { return root_ + "/" + name; }
  // Made with this mode, whatever the umask.
  std::string Make(const std::string& name, mode_t mode) const {
    const std::string path = At(name);
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0) << path;
    EXPECT_EQ(chmod(path.c_str(), mode), 0) << path;
    return path;
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }
  static void ExpectDenied(const absl::Status& status, const std::string& what) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(what), HasSubstr("--run-dir")));
  }

  std::string root_;
};

TEST_F(PrivateDirectoryTest, EachLevelIsMadeForThisUserAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 0022, 0077}) {
    const mode_t before = umask(mask);
    const std::string parent = At("parent" + std::to_string(mask));
    EXPECT_EQ(MakePrivateDirectory(parent + "/run"), absl::OkStatus());
    umask(before);
    EXPECT_EQ(ModeOf(parent), 0700u);
    EXPECT_EQ(ModeOf(parent + "/run"), 0700u);
    EXPECT_EQ(MakePrivateDirectory(parent + "/run"), absl::OkStatus()) << "it is there";
    EXPECT_EQ(CheckPrivateDirectory(parent + "/./x/../run/"),
              absl::NotFoundError(parent + "/x does not exist"));
  }
}

TEST_F(PrivateDirectoryTest, WhatOthersMayWriteToIsRefused) {
  ExpectDenied(CheckPrivateDirectory(Make("shared", 0777)), "shared belongs to user");
  ExpectDenied(MakePrivateDirectory(At("shared/run")), "with mode 0777");
  EXPECT_FALSE(std::filesystem::exists(At("shared/run")));
  ExpectDenied(CheckPrivateDirectory(Make("group", 0770)), "with mode 0770");
  ExpectDenied(MakePrivateDirectory(At("group/run")), "sticky");
  EXPECT_EQ(MakePrivateDirectory(Make("sticky", 01777) + "/run"), absl::OkStatus());
  ExpectDenied(CheckPrivateDirectory(At("sticky")), "with mode 1777");
  EXPECT_EQ(CheckPrivateDirectory(Make("readable", 0755)), absl::OkStatus());
}

TEST_F(PrivateDirectoryTest, FilesAndAbsentOnesAreNamed) {
  std::ofstream(At("file")) << "x";
  EXPECT_TRUE(absl::IsAlreadyExists(MakePrivateDirectory(At("file"))));
  EXPECT_TRUE(absl::IsAlreadyExists(MakePrivateDirectory(At("file/run"))));
  EXPECT_TRUE(absl::IsNotFound(CheckPrivateDirectory(At("absent/run"))));
  EXPECT_FALSE(std::filesystem::exists(At("absent")));
}

TEST_F(PrivateDirectoryTest, OwnLinksAreFollowedAndWhatTheyLeadToIsLookedAt) {
  Make("real", 0700);
  std::filesystem::create_symlink("real", At("link"));
  std::filesystem::create_symlink(At("link"), At("absolute"));
  EXPECT_EQ(MakePrivateDirectory(At("absolute/run")), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_directory(At("real/run")));
  std::filesystem::create_symlink("../real/run", At("real/up"));
  EXPECT_EQ(CheckPrivateDirectory(At("link/up")), absl::OkStatus());
  Make("shared", 0777);
  std::filesystem::create_symlink("shared", At("to_shared"));
  ExpectDenied(MakePrivateDirectory(At("to_shared/run")), "with mode 0777");
  std::filesystem::create_symlink("round", At("round"));
  EXPECT_FALSE(CheckPrivateDirectory(At("round")).ok());
}

TEST_F(PrivateDirectoryTest, AnotherUsersDirectoryOrLinkIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory to another user";
  const std::string theirs = Make("theirs", 0700);
  ASSERT_EQ(chown(theirs.c_str(), kAnother, kAnother), 0);
  ExpectDenied(CheckPrivateDirectory(theirs), "theirs belongs to user 65533");
  ExpectDenied(MakePrivateDirectory(theirs + "/run"), "needed this user's or root's");
  EXPECT_FALSE(std::filesystem::exists(theirs + "/run"));
  Make("mine", 0700);
  Make("sticky", 01777);
  std::filesystem::create_symlink("../mine", At("sticky/link"));
  ASSERT_EQ(lchown(At("sticky/link").c_str(), kAnother, kAnother), 0);
  ExpectDenied(CheckPrivateDirectory(At("sticky/link")), "symbolic link of this user's");
  // The owner of a sticky directory may rename what is in it.
  ASSERT_EQ(chown(At("sticky").c_str(), kAnother, kAnother), 0);
  ExpectDenied(MakePrivateDirectory(At("sticky/run")), "needed this user's or root's");
}

TEST_F(PrivateDirectoryTest, ASecretIsReadByNobodyElse) {
  EXPECT_TRUE(absl::IsNotFound(CheckPrivateFile(At("key"))));
  std::ofstream(At("key")) << "secret";
  for (const mode_t mode : {0600, 0400}) {
    ASSERT_EQ(chmod(At("key").c_str(), mode), 0);
    EXPECT_EQ(CheckPrivateFile(At("key")), absl::OkStatus()) << mode;
  }
  for (const mode_t mode : {0644, 0604, 0660, 0700}) {
    ASSERT_EQ(chmod(At("key").c_str(), mode), 0);
    const absl::Status status = CheckPrivateFile(At("key"));
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << mode;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("key'"), HasSubstr("chmod 600")));
  }
  if (geteuid() != 0) return;
  ASSERT_EQ(chmod(At("key").c_str(), 0640), 0);
  EXPECT_EQ(CheckPrivateFile(At("key")), absl::OkStatus()) << "root's, for a group";
  ASSERT_EQ(chmod(At("key").c_str(), 0600), 0);
  ASSERT_EQ(chown(At("key").c_str(), kAnother, kAnother), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckPrivateFile(At("key"))));
}

TEST_F(PrivateDirectoryTest, ALockIsNoLinkToAFileOfItsUsers) {
  std::ofstream(At("precious")) << "text";
  Make("run", 0700);
  std::filesystem::create_symlink(At("precious"), At("run/unreft.lock"));
  EXPECT_FALSE(LockFile::Acquire(At("run")).ok());
  EXPECT_EQ(std::filesystem::file_size(At("precious")), 4u);
  EXPECT_FALSE(LockFile::Acquire(Make("shared", 0777)).ok());
}

}  // namespace
}  // namespace unreft
