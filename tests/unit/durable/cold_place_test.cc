// Which texts name a place for durable copies.

#include "durable/cold_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unreft::durable {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

TEST(ColdPlace, ReadsABucketAndAPrefix) {
  const auto place = ParseS3Place("s3://bucket/a/b.c");
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->bucket, "bucket");
  EXPECT_EQ(place->prefix, "a/b.c");
  EXPECT_EQ(place->Text(), "s3://bucket/a/b.c");
  EXPECT_EQ(ParseS3Place("s3://my.bucket-2")->prefix, "");
  EXPECT_EQ(ParseS3Place("s3://bucket/")->Text(), "s3://bucket");
  EXPECT_EQ(ParseS3Place("s3://bucket//a///b//")->prefix, "a/b");
}

TEST(ColdPlace, RefusesWhatIsNone) {
  for (const std::string text : {"s3://",
                                 "s3:///a",
                                 "s3://ab",
                                 "s3://Bucket/a",
                                 "s3://bu_cket",
                                 "s3://-bucket",
                                 "s3://bucket.",
                                 "s3://a..b",
                                 "s3://bucket/../other",
                                 "s3://bucket/a/./b",
                                 "s3://bucket/a b",
                                 "s3://bucket/a?b",
                                 "s3://bucket/a=1",
                                 "s3://bucket/\n",
                                 "s3://bucket/.unreft-part-1",
                                 "s3://user@bucket",
                                 "s3://bucket:80/a",
                                 "S3://bucket",
                                 "/a",
                                 ""}) {
    const absl::Status status = ParseS3Place(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("s3://BUCKET/PREFIX")) << text;
  }
  EXPECT_FALSE(ParseS3Place("s3://" + std::string(64, 'b')).ok());
  EXPECT_FALSE(ParseS3Place("s3://bucket/" + std::string(201, 'p')).ok());
  const std::string part(150, 'p');
  EXPECT_TRUE(ParseS3Place("s3://bucket/" + part + "/" + part + "/" + part).ok());
  EXPECT_FALSE(
      ParseS3Place("s3://bucket/" + part + "/" + part + "/" + part + "/" + part + "/a").ok());
}

TEST(ColdPlace, IsAnAbsolutePathOrS3) {
  EXPECT_TRUE(CheckColdPlace("/mnt/ckpt").ok());
  EXPECT_TRUE(CheckColdPlace("s3://bucket/a").ok());
  for (const char* const text : {"copies", "./copies", "", "gs://bucket/a", "s3:/bucket"}) {
    const absl::Status status = CheckColdPlace(text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("an absolute path, or s3://")) << text;
  }
  EXPECT_EQ(CheckColdPlace("s3://B").code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace unreft::durable
