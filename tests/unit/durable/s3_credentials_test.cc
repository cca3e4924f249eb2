// Where credentials and settings of S3 are looked for, and what is said when none are there.

#include "durable/s3_credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "tests/unit/durable/s3_testing.h"

namespace unreft::durable {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Map = std::map<std::string, std::string>;

constexpr char kKeysFile[] =
    "# a comment\n[default]\naws_access_key_id = of-default\naws_secret_access_key=s1\n\n"
    "[other]\naws_access_key_id=of-other\n  nested = 1\nnot an assignment\n"
    "AWS_SECRET_ACCESS_KEY = s2 \n[broken\naws_access_key_id=nobody\n";
constexpr char kConfigFile[] =
    "[default]\nregion = eu-west-1\n[profile other]\nregion=eu-west-2\naws_session_token=t2\n"
    "endpoint_url = https://store:9000/\n[profile process]\ncredential_process = /bin/x\n";

const Map kFiles = {{"/h/.aws/credentials", kKeysFile}, {"/h/.aws/config", kConfigFile}};

class S3CredentialsTest : public testing::Test {
 protected:
  absl::StatusOr<S3Keys> Get(Map variables, Map files = kFiles) {
    variables.emplace("HOME", "/h");
    variables.emplace("AWS_EC2_METADATA_DISABLED", "true");
    S3Credentials credentials(FakeEnvironment(std::move(variables), std::move(files)), sender_,
                              [this] { return now_; });
    return credentials.Get();
  }

  FakeSender sender_;
  S3Credentials::WallTime now_ = std::chrono::system_clock::from_time_t(1'700'000'000);
};

TEST_F(S3CredentialsTest, TheEnvironmentComesFirst) {
  const auto keys = Get({{"AWS_ACCESS_KEY_ID", "id"},
                         {"AWS_SECRET_ACCESS_KEY", "secret"},
                         {"AWS_SESSION_TOKEN", "token"}});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->id, "id");
  EXPECT_EQ(keys->secret, "secret");
  EXPECT_EQ(keys->session_token, "token");
  const absl::Status half = Get({{"AWS_ACCESS_KEY_ID", "id"}}).status();
  EXPECT_EQ(half.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(half.message()), HasSubstr("AWS_SECRET_ACCESS_KEY"));
  const absl::Status bad =
      Get({{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "sec\nret"}}).status();
  EXPECT_THAT(std::string(bad.message()), AllOf(HasSubstr("control"), Not(HasSubstr("ret\n"))));
}

TEST_F(S3CredentialsTest, ThenTheProfile) {
  EXPECT_EQ(Get({})->id, "of-default");
  const auto other = Get({{"AWS_PROFILE", "other"}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->id, "of-other");
  EXPECT_EQ(other->secret, "s2");
  EXPECT_EQ(other->session_token, "t2");
  const auto elsewhere = Get({{"AWS_SHARED_CREDENTIALS_FILE", "/k"}, {"AWS_CONFIG_FILE", "/c"}},
                             {{"/k", "[default]\naws_access_key_id=a\naws_secret_access_key=b\n"}});
  EXPECT_EQ(elsewhere->id, "a");
  const absl::Status absent = Get({{"AWS_PROFILE", "absent"}}).status();
  EXPECT_EQ(absent.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(absent.message()),
              AllOf(HasSubstr("'absent'"), HasSubstr("/h/.aws/credentials")));
  const absl::Status process = Get({{"AWS_PROFILE", "process"}}).status();
  EXPECT_THAT(std::string(process.message()), HasSubstr("credential_process, which is not read"));
}

TEST_F(S3CredentialsTest, SaysAllThatWasLookedFor) {
  const absl::Status none = Get({}, {}).status();
  EXPECT_EQ(none.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("AWS_ACCESS_KEY_ID"), HasSubstr("profile 'default'"),
                    HasSubstr("/h/.aws/credentials"), HasSubstr("_RELATIVE_URI"),
                    HasSubstr("AWS_EC2_METADATA_DISABLED is set")));
  const absl::Status web = Get({{"AWS_WEB_IDENTITY_TOKEN_FILE", "/t"}}, {}).status();
  EXPECT_THAT(std::string(web.message()), HasSubstr("AWS_WEB_IDENTITY_TOKEN_FILE is set"));
  EXPECT_TRUE(sender_.sent().empty());
}

constexpr char kKeys[] = R"({"AccessKeyId":"cid","SecretAccessKey":"cs","Token":"ct",)"
                         R"("Expiration":"2023-11-14T23:13:20Z"})";

TEST_F(S3CredentialsTest, ThenTheContainersEndpoint) {
  sender_.Next(Said(200, kKeys));
  const auto keys = Get({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/creds"},
                         {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/token"}},
                        {{"/token", "bearer-1\n"}});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->id, "cid");
  ASSERT_EQ(sender_.sent().size(), 1U);
  EXPECT_EQ(sender_.sent()[0].url, "http://169.254.170.23/v1/creds");
  EXPECT_EQ(sender_.sent()[0].headers.at("authorization"), "bearer-1");
  EXPECT_EQ(sender_.sent()[0].key_id, "");
  sender_.Next(Said(200, kKeys));
  EXPECT_TRUE(Get({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x"}}, {}).ok());
  EXPECT_EQ(sender_.sent()[1].url, "http://169.254.170.2/v2/x");
  // A secret is asked of nobody else.
  for (const char* const url : {"http://evil.example/x", "http://127.0.0.1.evil.example/",
                                "http://169.254.170.2@evil.example/"}) {
    EXPECT_EQ(Get({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url}}, {}).status().code(),
              StatusCode::kFailedPrecondition)
        << url;
  }
  EXPECT_EQ(sender_.sent().size(), 2U);
}

TEST_F(S3CredentialsTest, WhatAServiceAnswersIsCheckedAndNotShown) {
  for (const std::string text :
       {"", "[]", "{", R"({"AccessKeyId":"a"})", R"({"AccessKeyId":1,"SecretAccessKey":"hidden"})",
        R"({"AccessKeyId":"a b","SecretAccessKey":"hidden"})"}) {
    sender_.Next(Said(200, text));
    const absl::Status status =
        Get({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x"}}, {}).status();
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hidden")));
  }
  sender_.Next(Said(500, "hidden"));
  EXPECT_EQ(Get({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x"}}, {}).status().code(),
            StatusCode::kUnavailable);
}

TEST_F(S3CredentialsTest, ThenTheInstance) {
  sender_.Next(Said(200, "token-1"));
  sender_.Next(Said(200, "my-role\nanother"));
  sender_.Next(Said(200, kKeys));
  const auto keys = Get({{"AWS_EC2_METADATA_DISABLED", "false"}}, {});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->session_token, "ct");
  const auto sent = sender_.sent();
  ASSERT_EQ(sent.size(), 3U);
  EXPECT_EQ(sent[0].method, "PUT");
  EXPECT_EQ(sent[0].url, "http://169.254.169.254/latest/api/token");
  EXPECT_EQ(sent[2].headers.at("x-aws-ec2-metadata-token"), "token-1");
  EXPECT_THAT(sent[2].url, testing::EndsWith("/security-credentials/my-role"));
  sender_.Next(Said(200, "token-1"));
  sender_.Next(Said(200, "../../user-data"));
  EXPECT_THAT(std::string(Get({{"AWS_EC2_METADATA_DISABLED", "false"}}, {}).status().message()),
              HasSubstr("it names no role"));
}

TEST_F(S3CredentialsTest, WhatExpiresIsAskedForAgainInTime) {
  S3Credentials credentials(FakeEnvironment({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x"}}),
                            sender_, [this] { return now_; });
  sender_.Next(Said(200, kKeys));  // until an hour after now_
  EXPECT_EQ(credentials.Get()->id, "cid");
  EXPECT_EQ(credentials.Get()->id, "cid");
  EXPECT_EQ(sender_.sent().size(), 1U);
  now_ += std::chrono::minutes(57);
  EXPECT_EQ(credentials.Get()->id, "cid") << "it is good for three minutes more";
  EXPECT_EQ(sender_.sent().size(), 2U);
  now_ += std::chrono::minutes(4);
  EXPECT_EQ(credentials.Get().status().code(), StatusCode::kUnavailable);
  std::string renewed = kKeys;
  renewed.replace(renewed.find("cid"), 3, "new");
  sender_.Next(Said(200, renewed));
  EXPECT_EQ(credentials.Get()->id, "new");
}

TEST(S3Settings, AreThoseOfTheEnvironmentThenOfTheProfile) {
  const auto read = [](Map variables) {
    variables.emplace("HOME", "/h");
    return ReadS3Settings(FakeEnvironment(std::move(variables), kFiles));
  };
  EXPECT_EQ(read({})->region, "eu-west-1");
  EXPECT_EQ(read({})->endpoint, "");
  EXPECT_EQ(read({{"AWS_PROFILE", "other"}})->endpoint, "https://store:9000");
  const auto set = read({{"AWS_DEFAULT_REGION", "r1"},
                         {"AWS_ENDPOINT_URL", "http://all:1"},
                         {"AWS_ENDPOINT_URL_S3", "http://s3:1/"},
                         {"AWS_CA_BUNDLE", "/ca.pem"}});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->region, "r1");
  EXPECT_EQ(set->endpoint, "http://s3:1");
  EXPECT_EQ(set->ca_file, "/ca.pem");
  EXPECT_EQ(read({{"AWS_REGION", "r2"}, {"AWS_DEFAULT_REGION", "r1"}})->region, "r2");
  for (const char* const endpoint : {"store:9000", "ftp://store", "http://", "http://a b",
                                     "http://user@store", "http://store?x"}) {
    EXPECT_EQ(read({{"AWS_ENDPOINT_URL", endpoint}}).status().code(),
              StatusCode::kFailedPrecondition)
        << endpoint;
  }
  const absl::Status none = ReadS3Settings(FakeEnvironment({})).status();
  EXPECT_EQ(none.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), HasSubstr("AWS_REGION: needed"));
  EXPECT_EQ(ReadS3Settings(FakeEnvironment({{"AWS_ENDPOINT_URL", "http://h"}}))->region,
            "us-east-1");
}

}  // namespace
}  // namespace unreft::durable
